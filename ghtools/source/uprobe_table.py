# SPDX-License-Identifier: Apache-2.0
"""Which functions are probed, and how a call is read from its arguments.

The same functions and the same meaning of bytes and peer as the shim's (csrc/shim); a test compares the names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ghtools.stream.records import FLAG_ASYNC

# Probes that are no calls: a communicator is made at this address; a group of calls begins, ends.
SILENT = ("made", "group_start", "group_end")
# The first may jump into the second (which then has the first's caller as its own), and that is one call.
TAIL_CALLS = (("16allreduce_sparse", "9allreduceE"), ("ncclBcast", "ncclBroadcast"))

_GLOO = "_ZN4c10d16ProcessGroupGloo"
_TENSORS = "RSt6vectorIN2at6TensorESaIS3_EE"
_LISTS = "RSt6vectorIS1_IN2at6TensorESaIS3_EESaIS5_EE"
_STORE = "intrusive_target_default_null_type"


@dataclass(frozen=True)
class Probe:
    """One function. Arguments are numbered as in the C++ or C declaration's registers, from 0."""

    library: str  # gloo or nccl
    symbol: str
    op: str  # a name of records.OPS, or one of SILENT
    comm: int = -1  # argument that is the communicator
    vector: int = -1  # argument that is a std::vector<at::Tensor> &
    tensor: int = -1  # argument that is an at::Tensor &
    count: int = -1  # argument that is a number of elements; the next one is its ncclDataType_t
    peer: int = -1  # argument that is the peer or root
    root_at: int = -1  # argument that is an options struct with the root (of waits: the peer) in it
    root_offset: int = 0  # bytes from its begin to the root
    blocking: bool = False

    @property
    def flags(self) -> int:
        """Flags that every call of this function has."""
        return 0 if self.blocking else FLAG_ASYNC


def _method(symbol: str, op: str, *, sized: int = -1, base: int = -1, root: int = -1, peer: int = -1) -> Probe:
    """A method that returns an intrusive_ptr<Work>: on x86-64 argument 0 is where to put it, 1 is `this`."""
    return Probe("gloo", _GLOO + symbol, op, 1, sized, base, peer=peer, root_at=root)


GLOO: tuple[Probe, ...] = (
    _method(f"9allreduceE{_TENSORS}RKNS_16AllreduceOptionsE", "all_reduce", sized=2),
    _method(f"19allreduce_coalescedE{_TENSORS}RKNS_25AllreduceCoalescedOptionsE", "all_reduce", sized=2),
    _method(f"16allreduce_sparseE{_TENSORS}RKNS_16AllreduceOptionsE", "all_reduce"),
    _method(f"9broadcastE{_TENSORS}RKNS_16BroadcastOptionsE", "broadcast", sized=2, root=3),
    _method(f"6reduceE{_TENSORS}RKNS_13ReduceOptionsE", "reduce", sized=2, root=3),
    _method(f"9allgatherE{_LISTS}RS5_RKNS_16AllgatherOptionsE", "all_gather", sized=3),
    _method("15_allgather_baseERN2at6TensorES3_RKNS_16AllgatherOptionsE", "all_gather", base=3),
    _method(f"19allgather_coalescedE{_LISTS}RS5_RKNS_16AllgatherOptionsE", "all_gather", sized=3),
    _method(f"31allgather_into_tensor_coalescedE{_TENSORS}S6_RKNS_16AllgatherOptionsE", "all_gather", sized=3),
    _method(f"14reduce_scatterE{_TENSORS}RS1_IS5_SaIS5_EERKNS_20ReduceScatterOptionsE", "reduce_scatter", sized=2),
    _method("20_reduce_scatter_baseERN2at6TensorES3_RKNS_20ReduceScatterOptionsE", "reduce_scatter", base=2),
    _method(f"31reduce_scatter_tensor_coalescedE{_TENSORS}S6_RKNS_20ReduceScatterOptionsE", "reduce_scatter", sized=2),
    _method("13alltoall_baseERN2at6TensorES3_RSt6vectorIlSaIlEES7_RKNS_15AllToAllOptionsE", "all_to_all", base=3),
    _method(f"8alltoallE{_TENSORS}S6_RKNS_15AllToAllOptionsE", "all_to_all", sized=3),
    _method(f"6gatherE{_LISTS}RS5_RKNS_13GatherOptionsE", "gather", sized=3, root=4),
    _method(f"7scatterE{_TENSORS}RS1_IS5_SaIS5_EERKNS_14ScatterOptionsE", "scatter", sized=2, root=4),
    _method(f"4sendE{_TENSORS}ii", "send", sized=2, peer=3),
    _method(f"4recvE{_TENSORS}ii", "recv", sized=2, peer=3),
    _method(f"13recvAnysourceE{_TENSORS}i", "recv", sized=2),
    _method("7barrierERKNS_14BarrierOptionsE", "barrier"),
    Probe("gloo", f"{_GLOO}16monitoredBarrierERKNS_14BarrierOptionsEb", "barrier", 0, blocking=True),
    Probe(
        "gloo",
        f"{_GLOO}C1ERKN3c1013intrusive_ptrINS_5StoreENS1_6detail34{_STORE}IS3_EEEEiiNS2_INS0_7OptionsENS5_ISA_EEEE",
        "made",
        0,
    ),
)


def _nccl(name: str, op: str, comm: int, count: int, peer: int = -1) -> tuple[Probe, ...]:
    """A call and its twin that takes a configuration as last argument (NCCL 2.32)."""
    plain = Probe("nccl", f"nccl{name}", op, comm, count=count, peer=peer)
    if op in ("send", "recv", "put_signal") or name == "Bcast":
        return (plain,)
    return plain, replace(plain, symbol=f"nccl{name}Config")


NCCL: tuple[Probe, ...] = (
    *_nccl("AllReduce", "all_reduce", 5, 2),
    *_nccl("AllGather", "all_gather", 4, 2),
    *_nccl("ReduceScatter", "reduce_scatter", 5, 2),
    *_nccl("Broadcast", "broadcast", 5, 2, 4),
    *_nccl("Bcast", "broadcast", 4, 1, 3),
    *_nccl("Reduce", "reduce", 6, 2, 5),
    *_nccl("AlltoAll", "all_to_all", 4, 2),
    Probe("nccl", "ncclAllToAll", "all_to_all", 4, count=2),  # RCCL's spelling
    *_nccl("Gather", "gather", 5, 2, 4),
    *_nccl("Scatter", "scatter", 5, 2, 4),
    *_nccl("Send", "send", 4, 1, 3),
    *_nccl("Recv", "recv", 4, 1, 3),
    *_nccl("PutSignal", "put_signal", 9, 1, 3),
    Probe("nccl", "ncclSignal", "put_signal", 4, peer=0),
    Probe("nccl", "ncclWaitSignal", "wait_signal", 2, root_at=1),
    Probe("nccl", "ncclGroupStart", "group_start"),
    Probe("nccl", "ncclGroupEnd", "group_end"),
    Probe("nccl", "ncclGroupSimulateEnd", "group_end"),
)

LIBRARIES: tuple[tuple[str, tuple[Probe, ...]], ...] = (
    ("libtorch_cpu.so", GLOO),
    ("libnccl.so", NCCL),
    ("librccl.so", NCCL),
)

# at::ScalarType -> (element type of records.DTYPES, bytes an element)
SCALARS: dict[int, tuple[str, int]] = {
    0: ("uint8", 1), 1: ("int8", 1), 2: ("int16", 2), 3: ("int32", 4), 4: ("int64", 8), 5: ("float16", 2),
    6: ("float32", 4), 7: ("float64", 8), 8: ("unknown", 4), 9: ("complex64", 8), 10: ("complex128", 16),
    11: ("bool", 1), 12: ("int8", 1), 13: ("uint8", 1), 14: ("int32", 4), 15: ("bfloat16", 2),
    23: ("float8_e5m2", 1), 24: ("float8_e4m3", 1), 25: ("float8_e5m2", 1), 26: ("float8_e4m3", 1),
    27: ("unknown", 2), 28: ("uint32", 4), 29: ("uint64", 8),
}  # fmt: skip

# ncclDataType_t -> the same
NCCL_TYPES: dict[int, tuple[str, int]] = {
    0: ("int8", 1), 1: ("uint8", 1), 2: ("int32", 4), 3: ("uint32", 4), 4: ("int64", 8), 5: ("uint64", 8),
    6: ("float16", 2), 7: ("float32", 4), 8: ("float64", 8), 9: ("bfloat16", 2), 10: ("float8_e4m3", 1),
    11: ("float8_e5m2", 1),
}  # fmt: skip
