# SPDX-License-Identifier: Apache-2.0
"""Alerts to syslog: one datagram an alert, never waiting.

Not logging.handlers.SysLogHandler: its Unix socket blocks for ever when the log daemon hangs with a full
queue, and an alert must never stop the stream.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ghtools.stream.errors import GhError, MissingError
from ghtools.stream.records import Alert

FACILITY_DAEMON = 3
SEVERITY = {"critical": 2, "warning": 4, "info": 6}


class Syslog:
    """Sends alerts to `address`: the path of a Unix datagram socket, or HOST:PORT (UDP; [V6]:PORT)."""

    def __init__(self, address: str = "/dev/log") -> None:
        self.dropped = 0
        self._to: str | tuple[str, int]
        if "/" in address:
            if not Path(address).is_socket():
                raise MissingError(
                    "cannot reach syslog",
                    f"{address} is no socket (no log daemon here?)",
                    "--syslog-address HOST:PORT",
                )
            self._to = address
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        else:
            host, colon, port = address.rpartition(":")
            if not colon or not port.isdigit() or not 0 < int(port) < 65536:
                raise GhError(f"bad syslog address {address}", "it is neither a path nor HOST:PORT")
            try:
                found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
            except OSError as error:
                raise MissingError("cannot reach syslog", f"{host}: {error.strerror or error}") from None
            self._to = (str(found[4][0]), int(port))
            self._socket = socket.socket(found[0], socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, alert: Alert) -> None:
        """Send one alert, or count it as dropped."""
        priority = FACILITY_DAEMON * 8 + SEVERITY.get(alert.severity, 6)
        text = " ".join(f"<{priority}>ghtools[{os.getpid()}]: {alert.text} [{alert.id}]".split())
        try:
            self._socket.sendto(text.encode("utf-8", "replace")[:2000], self._to)
        except OSError:
            self.dropped += 1

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()
