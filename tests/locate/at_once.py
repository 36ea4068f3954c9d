# SPDX-License-Identifier: Apache-2.0
"""For stages that run tests beside a stream: the test is done before the stream goes on."""

from __future__ import annotations

from concurrent.futures import Future

from ghtools.locate.aside import Test
from ghtools.stream.records import Record


def at_once(test: Test) -> Future[list[Record]]:
    """Run a test here and now."""
    future: Future[list[Record]] = Future()
    future.set_result(test())
    return future
