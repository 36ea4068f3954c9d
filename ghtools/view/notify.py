# SPDX-License-Identifier: Apache-2.0
"""Alerts as JSON: for --json, the webhook, and whoever else reads maps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ghtools.stream.records import Alert, Record
from ghtools.stream.writer import Writer


class _Nowhere:
    """A binary sink that keeps nothing."""

    def write(self, data: bytes, /) -> None:
        return None

    def flush(self) -> None:
        return None


class Discard(Writer):
    """Takes the records that a terminal cannot show."""

    def __init__(self) -> None:
        super().__init__(_Nowhere())

    def write(self, record: Record) -> None:
        """Forget the record."""


class JsonLines(Discard):
    """Writes alerts, and only those, as lines of JSON."""

    def __init__(self, put: Callable[[str], object]) -> None:
        super().__init__()
        self._put = put

    def write(self, record: Record) -> None:
        """Put one line if the record is an alert."""
        if isinstance(record, Alert):
            self._put(json.dumps(alert_map(record), ensure_ascii=False) + "\n")


def alert_map(alert: Alert) -> dict[str, Any]:
    """An alert as plain values, `kind` first; `text` is what chat services show."""
    values = {f.name: getattr(alert, f.name) for f in fields(alert) if f.name != "extra"}
    whole = {"kind": "alert", **values, **alert.extra}
    # JSON has no NaN.
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in whole.items()}
