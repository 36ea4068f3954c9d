# SPDX-License-Identifier: Apache-2.0
"""Real parts for tests and the demo: limits that are put on a running process, and jobs."""
