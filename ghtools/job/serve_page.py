# SPDX-License-Identifier: Apache-2.0
"""Serve the control page of a job on this host to the job's other hosts (gh-trace --serve, DESIGN section 8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ghtools.stream.bus_link import bus_url

from .control import ControlPage
from .control_bus import ControlServer, page_applier


class PageServer:
    """Takes requests for this host until `close`."""

    def __init__(self, url: str, job_dir: Path, say: Callable[[str], None]) -> None:
        self._page = ControlPage.create(job_dir)
        try:
            self._server = ControlServer(bus_url(url), job_dir.name, page_applier(self._page), say)
        except BaseException:
            self._page.close()
            raise

    def close(self) -> None:
        """End; what was asked for stands to the end of its lease."""
        self._server.close()
        self._page.close()


def serve_page(url: str, job_dir: Path, say: Callable[[str], None]) -> PageServer:
    """Serve the page of the job in this directory; `-` is the URL in GHT_REDIS_URL. GhError if that is none."""
    return PageServer(os.environ.get("GHT_REDIS_URL", "") if url == "-" else url, job_dir, say)
