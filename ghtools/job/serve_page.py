# SPDX-License-Identifier: Apache-2.0
"""Serve the control page of a job on this host to the job's other hosts (gh-trace --serve, DESIGN section 8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ghtools.stream.bus_link import BusUrl, bus_url

from .control import ControlPage
from .control_bus import ControlServer, page_applier
from .control_messages import Reply, Request

Applier = Callable[[Request], Reply]
ON_PAGE = ("profile", "track")  # what the control page alone is asked for; the rest are tests at a boundary


class PageServer:
    """Takes requests for this host until `close`; `tests` answers those that the page does not."""

    def __init__(self, url: BusUrl, job_dir: Path, say: Callable[[str], None], tests: Applier) -> None:
        self._page = ControlPage.create(job_dir)
        on_page = page_applier(self._page)

        def apply(asked: Request) -> Reply:
            return on_page(asked) if asked.what in ON_PAGE else tests(asked)

        try:
            self._server = ControlServer(url, job_dir.name, apply, say)
        except BaseException:
            self._page.close()
            raise

    def close(self) -> None:
        """End; what was asked for stands to the end of its lease."""
        self._server.close()
        self._page.close()


def given_url(url: str) -> BusUrl:
    """The URL of an option; `-` is the one in GHT_REDIS_URL. GhError if that is none."""
    return bus_url(os.environ.get("GHT_REDIS_URL", "") if url == "-" else url)
