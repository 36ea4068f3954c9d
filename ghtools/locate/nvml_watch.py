# SPDX-License-Identifier: Apache-2.0
"""What NVML says of this host's GPUs while a test runs on them in other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from functools import cache
from types import TracebackType
from typing import Any

from .nvml_facts import Nvml

EVERY_S = 0.1


@cache
def nvml_here() -> Nvml:
    """NVML of this host, begun once: that takes a tenth of a second or so."""
    return Nvml()


class NvmlWatch:
    """Asks while the block runs. Of each GPU it keeps what was said when it drew most power, so while it worked, and
    all reasons to throttle that were given. Without NVML, or without GPUs, there is nothing to keep."""

    def __init__(self, uuids: Collection[str], nvml: Callable[[], Nvml] = nvml_here) -> None:
        self._uuids, self._facts = sorted(uuids), dict[str, dict[str, Any]]()
        self._nvml = nvml
        self._over, self._thread = threading.Event(), threading.Thread(target=self._watch, daemon=True)

    def facts(self, uuid: str) -> dict[str, Any]:
        """As Nvml.facts; empty if nothing is known of it."""
        return self._facts.get(uuid, {})

    def _look(self) -> None:
        for uuid in self._uuids:
            new, old = self._nvml().facts(uuid), self._facts.get(uuid, {})
            reasons = {*old.get("throttle", ()), *new.get("throttle", ())}
            busier = new if new.get("power_w", 0) >= old.get("power_w", 0) else old
            if busier:
                self._facts[uuid] = {**busier, **({"throttle": sorted(reasons)} if "throttle" in busier else {})}

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            self._look()

    def __enter__(self) -> NvmlWatch:
        if self._uuids:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
