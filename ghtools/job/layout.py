# SPDX-License-Identifier: Apache-2.0
"""numpy dtypes of the ring file and the control page; a test compares them with csrc/ring.h as compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

RING_MAGIC = 0x31474E4952544847  # "GHTRING1"
RING_ABI = 3
CONTROL_MAGIC = 0x314C525443544847  # "GHTCTRL1"
CONTROL_ABI = 2
PAGE = 4096
HEAD_PAGES = 7  # header, live, mail, four of tallies
MAIL_AT, TALLY_AT = 2 * PAGE, 3 * PAGE
TALLY_CAP = 1024

BACKENDS: dict[int, str] = {1: "gloo", 2: "nccl"}

RECORD_DTYPE = np.dtype(
    [
        ("t_ns", "<i8"),
        ("dur_ns", "<i8"),
        ("bytes", "<i8"),
        ("comm", "<u8"),
        ("seq", "<i8"),
        ("lane", "<u8"),
        ("peer", "<i4"),
        ("flags", "<u2"),
        ("op", "u1"),
        ("dtype", "u1"),
    ]
)

HEADER_DTYPE = np.dtype(
    [
        ("magic", "<u8"),
        ("abi", "<u4"),
        ("header_bytes", "<u4"),
        ("comm_bytes", "<u4"),
        ("comm_cap", "<u4"),
        ("slot_bytes", "<u4"),
        ("slot_cap", "<u4"),
        ("slot_off", "<u8"),
        ("file_bytes", "<u8"),
        ("made_ns", "<i8"),
        ("clock_offset_ns", "<i8"),
        ("start_ticks", "<u8"),
        ("pid_ns", "<u8"),
        ("pid", "<i4"),
        ("ppid", "<i4"),
        ("rank", "<i4"),
        ("local_rank", "<i4"),
        ("world_size", "<i4"),
        ("node_rank", "<i4"),
        ("restart_count", "<i4"),
        ("uid", "<u4"),
        ("host", "S64"),
        ("job", "S64"),
        ("version", "S16"),
        ("command", "S256"),
        ("shim_path", "S256"),
    ]
)


def _at(fields: list[tuple[str, str, int]]) -> np.dtype[Any]:
    return np.dtype(
        {
            "names": [name for name, _, _ in fields],
            "formats": [code for _, code, _ in fields],
            "offsets": [offset for _, _, offset in fields],
        }
    )


LIVE_DTYPE = _at(
    [
        ("written", "<u8", 0),
        ("calls", "<u8", 8),
        ("dropped", "<u8", 64),
        ("unmatched", "<u8", 72),
        ("control_epoch", "<u8", 80),
        ("ended_ns", "<i8", 88),
        ("ended", "<u4", 96),
        ("tracking", "<u4", 100),
        ("profiling", "<u4", 104),
        ("backends", "<u4", 108),
        ("comm_count", "<u4", 128),
        ("comm_lost", "<u4", 132),
        ("tally_lost", "<u8", 136),
        ("gloo_path", "S256", 192),
        ("nccl_path", "S256", 448),
    ]
)

COMM_DTYPE = np.dtype(
    [
        ("id", "<u8"),
        ("parent", "<u8"),
        ("made_ns", "<i8"),
        ("size", "<i4"),
        ("comm_rank", "<i4"),
        ("backend", "<u4"),
        ("dead", "<u4"),
        ("version", "<u4"),
        ("pad", "<u4"),
        ("name", "S64"),
        ("pad2", "S16"),
    ]
)

CONTROL_DTYPE = _at(
    [
        ("magic", "<u8", 0),
        ("abi", "<u4", 8),
        ("page_bytes", "<u4", 12),
        ("off_until_ns", "<i8", 64),
        ("profile_until_ns", "<i8", 72),
        ("pause_until_ns", "<i8", 80),
        ("epoch", "<u8", 88),
    ]
)

MAIL_DTYPE = _at(
    [
        ("pause", "<u8", 0),
        ("until_ns", "<i8", 8),
        ("stop_seq", "<i8", 16),
        ("drain_ns", "<i8", 24),
        ("released", "<u8", 32),
        ("answered", "<u8", 64),
        ("state", "<u4", 72),
        ("tid", "<u4", 76),
        ("at_seq", "<i8", 80),
        ("arrived_ns", "<i8", 88),
        ("drained_ns", "<i8", 96),
        ("left_ns", "<i8", 104),
        ("task", "<u8", 128),
        ("kind", "<u4", 136),
        ("pad", "<u4", 140),
        ("arg", "(24,)<i8", 144),
        ("text", "S256", 336),
        ("done", "<u8", 640),
        ("status", "<i4", 648),
        ("count", "<u4", 652),
        ("value", "(256,)<i8", 656),
        ("said", "S256", 2704),
    ]
)
