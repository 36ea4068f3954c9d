# SPDX-License-Identifier: Apache-2.0
"""Processes that use the shim, for the tests of its readers."""

from tests.csrc.conftest import fakes, shim_env

__all__ = ["fakes", "shim_env"]
