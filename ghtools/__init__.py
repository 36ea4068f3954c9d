# SPDX-License-Identifier: Apache-2.0
"""ghtools: find the slow part of a large training job, while it runs."""

__version__ = "0.1.0"
