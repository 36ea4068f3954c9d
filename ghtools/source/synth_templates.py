# SPDX-License-Identifier: Apache-2.0
"""Call patterns of one training iteration, by family of parallelism, for synthetic streams.

A template is what one rank calls in one iteration, with the host gap before each call in relative units
(1 = the compute of one layer of one micro-batch, forward). The shapes follow what PyTorch DDP and FSDP2,
Megatron-LM and expert-parallel layers do on a rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ghtools.stream.records import OP_CODE

FAMILIES: tuple[str, ...] = ("ddp", "loop", "fsdp", "megatron", "moe", "pipeline")
WORLD, TP, DP, PP, EP = 1, 2, 3, 4, 5  # slots of communicators; call_stream turns them into ids
SLOT_NAMES: dict[int, str] = {WORLD: "world", TP: "tp", DP: "dp", PP: "pp", EP: "ep"}


@dataclass(frozen=True)
class Spec:
    """One call: operation name, size in bytes, slot of the communicator, peer or root, gap before it."""

    op: str
    bytes: int
    slot: int = WORLD
    peer: int = -1
    gap: float = 0.02
    loose: bool = False  # may swap places with its neighbour (overlapped or from another thread)

    @property
    def code(self) -> int:
        """Wire code of the operation."""
        return OP_CODE[self.op]


@dataclass(frozen=True)
class Template:
    """The calls of one iteration, those of a forward pass alone (evaluation), and how it was made."""

    family: str
    calls: list[Spec]
    forward: list[Spec] = field(default_factory=list)
    sizes: dict[str, Any] = field(default_factory=dict)


def _pick(rng: np.random.Generator, *choices: int) -> int:
    return int(choices[int(rng.integers(len(choices)))])


def ddp(sizes: dict[str, Any]) -> Template:
    """Gradient buckets on one communicator; `equal` buckets, `loss` = a scalar all_reduce every iteration."""
    buckets, layers = sizes["buckets"], sizes["layers"]
    full = sizes["bucket_bytes"]
    each = [full if sizes["equal"] else int(full * (1 + 0.11 * i)) // 4 * 4 for i in range(buckets)]
    if not sizes["equal"]:
        each[-1] = max(64, full // 7 // 4 * 4)
    per = 2.0 * layers / buckets
    calls = [Spec("all_reduce", b, gap=per, loose=sizes["loose"]) for b in each]
    calls[0] = Spec("all_reduce", each[0], gap=per + 1.0 * layers + 0.5)
    if sizes["loss"]:
        calls.append(Spec("all_reduce", 4, gap=0.05))
    return Template("ddp", calls, [], sizes)


def loop(sizes: dict[str, Any]) -> Template:
    """A hand-written loop: after the backward pass one all_reduce a parameter; equal layers."""
    width = sizes["width"]
    one = [4 * width * width, 4 * width, 16 * width * width, 16 * width, 16 * width * width, 4 * width]
    calls = [Spec("all_reduce", b) for _ in range(sizes["layers"]) for b in one]
    calls = [Spec("all_reduce", 4 * width * sizes["vocab"]), *calls]
    calls[0] = Spec("all_reduce", calls[0].bytes, gap=3.0 * sizes["layers"] + 0.5)
    if sizes["loss"]:
        calls.append(Spec("all_reduce", 4))
    return Template("loop", calls, [], sizes)


def fsdp(sizes: dict[str, Any]) -> Template:
    """Units gathered forward and backward, gradients reduced; `root` = a unit of its own size around them."""
    layers, unit, root, ahead = sizes["layers"], sizes["unit_bytes"], sizes["root"], sizes["prefetch"]
    gather = Spec("all_gather", unit, gap=1.0)
    forward = [Spec("all_gather", 3 * unit + 512, gap=0.5)] if root else []
    forward += [gather] * layers
    back: list[Spec] = []
    if ahead:  # the gather of the next unit is issued before this unit's gradients are reduced
        back.append(Spec("all_gather", unit, gap=0.3))
        for i in range(layers):
            if i < layers - 1:
                back.append(Spec("all_gather", unit, gap=0.3))
            back.append(Spec("reduce_scatter", unit, gap=1.9, loose=sizes["loose"]))
    else:
        for _ in range(layers):
            back += [Spec("all_gather", unit, gap=0.2), Spec("reduce_scatter", unit, gap=2.0, loose=sizes["loose"])]
    if root:
        back.append(Spec("reduce_scatter", 3 * unit + 512, gap=0.8))
    calls = forward + back
    if sizes["norm"]:
        calls.append(Spec("all_reduce", 4, gap=0.1))
    first = calls[0]
    calls[0] = Spec(first.op, first.bytes, gap=first.gap + 0.15 * layers + 0.8)
    return Template("fsdp", calls, forward, sizes)


def _layer(sizes: dict[str, Any], backward: bool) -> list[Spec]:
    """Tensor-parallel calls of one layer, of one micro-batch."""
    act, work = sizes["act_bytes"], 2.0 if backward else 1.0
    if sizes["tp"] == 1:
        return []
    if sizes["sp"]:
        pair = [
            Spec("all_gather", act // sizes["tp"], TP, gap=0.1 * work),
            Spec("reduce_scatter", act, TP, gap=0.4 * work),
        ]
        extra = [Spec("all_gather", act // sizes["tp"], TP, gap=0.05)] if backward else []
        return (extra + pair) * 2
    return [Spec("all_reduce", act, TP, gap=0.35 * work), Spec("all_reduce", act, TP, gap=0.65 * work)]


def _experts(sizes: dict[str, Any], backward: bool) -> list[Spec]:
    """Expert-parallel calls of one layer: dispatch and combine."""
    act, work = sizes["act_bytes"], 2.0 if backward else 1.0
    return [Spec("all_to_all", 2 * act, EP, gap=0.4 * work), Spec("all_to_all", 2 * act, EP, gap=0.5 * work)]


def _micro(sizes: dict[str, Any], backward: bool) -> list[Spec]:
    layers, first, last = sizes["layers"], sizes["stage"] == 0, sizes["stage"] == sizes["pp"] - 1
    act, tp = sizes["act_bytes"], sizes["tp"]
    out: list[Spec] = []
    if not backward and not first:
        out.append(Spec("recv", act, PP, sizes["stage"] - 1, gap=0.3))
    if backward and not last:
        out.append(Spec("recv", act, PP, sizes["stage"] + 1, gap=0.3))
    if backward and last and tp > 1:
        out.append(Spec("all_reduce", act, TP, gap=0.5))
    if not backward and first and tp > 1:
        out.append(Spec("all_reduce", act, TP, gap=0.2))
    for _ in range(layers):
        out += _layer(sizes, backward)
        if sizes.get("ep", 0) > 1:
            out += _experts(sizes, backward)
    if not backward and last and tp > 1:
        tokens = act // sizes["hidden"]
        out += [Spec("all_reduce", max(4, 2 * tokens), TP, gap=0.2)] * 3
    if not out or tp == 1:
        work = (2.0 if backward else 1.0) * layers
        out = [Spec(s.op, s.bytes, s.slot, s.peer, s.gap + work / max(1, len(out))) for s in out]
    if not backward and not last:
        out.append(Spec("send", act, PP, sizes["stage"] + 1, gap=0.05))
    if backward and not first:
        out.append(Spec("send", act, PP, sizes["stage"] - 1, gap=0.05))
    return out


def megatron(sizes: dict[str, Any]) -> Template:
    """Tensor, data and pipeline parallel with micro-batches, one-forward-one-backward."""
    pp, stage, micro = sizes["pp"], sizes["stage"], sizes["micro"]
    ahead = min(micro, pp - 1 - stage)
    fwd, bwd = _micro(sizes, False), _micro(sizes, True)
    calls = fwd * ahead
    for _ in range(micro - ahead):
        calls += fwd + bwd
    calls += bwd * ahead
    if sizes["dp"] > 1:
        part, n = sizes["grad_bytes"], sizes["grad_buckets"]
        grads = [part + 4096 * i for i in range(n)]
        name = "reduce_scatter" if sizes["zero"] else "all_reduce"
        calls += [Spec(name, b, DP, gap=0.3, loose=sizes["loose"]) for b in grads]
    if pp > 1 and stage in (0, pp - 1) and sizes["tied"]:
        calls.append(Spec("all_reduce", 2 * sizes["hidden"] * 4096, DP + 100, gap=0.2))
    if sizes["norm"]:
        calls.append(Spec("all_reduce", 4, WORLD, gap=0.2))
    if sizes["dp"] > 1 and sizes["zero"]:
        calls += [Spec("all_gather", b // 2, DP, gap=0.5) for b in grads]
    first = calls[0]
    calls[0] = Spec(first.op, first.bytes, first.slot, first.peer, first.gap + 0.4 * sizes["layers"] + 1.0)
    return Template(sizes.get("family", "megatron"), calls, fwd, sizes)


def pipeline(sizes: dict[str, Any]) -> Template:
    """Pipeline parallel alone, all forward passes then all backward passes: sends and receives only."""
    pp, stage, micro, act = sizes["pp"], sizes["stage"], sizes["micro"], sizes["act_bytes"]
    calls: list[Spec] = []
    for backward in (False, True):
        src, dst = (stage + 1, stage - 1) if backward else (stage - 1, stage + 1)
        for _ in range(micro):
            if 0 <= src < pp:
                calls.append(Spec("recv", act, PP, src, gap=0.3))
            if 0 <= dst < pp:
                calls.append(Spec("send", act, PP, dst, gap=2.0 if backward else 1.0))
    first = calls[0]
    calls[0] = Spec(first.op, first.bytes, first.slot, first.peer, first.gap + 2.0)
    return Template("pipeline", calls, calls[: len(calls) // 2], sizes)


def random_sizes(family: str, rng: np.random.Generator, **given: Any) -> dict[str, Any]:
    """Sizes of a plausible job of `family`; anything in `given` is taken as it is."""

    def coin(p: float = 0.5) -> bool:
        return bool(rng.random() < p)

    drawn: dict[str, dict[str, Any]] = {
        "ddp": {
            "buckets": int(rng.integers(2, 14)), "layers": _pick(rng, 2, 6, 12, 24), "equal": coin(0.2),
            "bucket_bytes": _pick(rng, 262_144, 1_048_576, 26_214_400), "loose": coin(0.3), "loss": coin(),
        },
        "loop": {
            "layers": _pick(rng, 2, 4, 12, 24), "width": _pick(rng, 64, 128, 768), "vocab": _pick(rng, 100, 5003),
            "loss": coin(),
        },
        "fsdp": {
            "layers": _pick(rng, 4, 12, 24, 32, 48), "unit_bytes": _pick(rng, 65_536, 2_097_152, 33_554_432),
            "root": True, "prefetch": coin(), "norm": coin(), "loose": coin(0.2),
        },
        "pipeline": {
            "pp": 4, "stage": _pick(rng, 0, 1, 2, 3), "micro": _pick(rng, 4, 8, 13),
            "act_bytes": _pick(rng, 8192, 1_048_576),
        },
    }  # fmt: skip
    if family in ("megatron", "moe"):
        pp = int(given.get("pp", _pick(rng, 1, 2, 4)))
        drawn[family] = {
            "tp": _pick(rng, 2, 4, 8), "dp": _pick(rng, 2, 4, 16), "pp": pp, "stage": int(rng.integers(pp)),
            "layers": _pick(rng, 2, 4, 6, 12), "micro": pp * _pick(rng, 1, 2, 4, 8), "sp": coin(), "zero": coin(),
            "hidden": 4096, "act_bytes": _pick(rng, 4_194_304, 33_554_432), "grad_bytes": 40_000_000, "loose": False,
            "grad_buckets": _pick(rng, 1, 3, 8), "norm": True, "tied": coin(), "ep": 0, "family": family,
        }  # fmt: skip
        if family == "moe":
            drawn[family] |= {"ep": 8, "tp": _pick(rng, 1, 2), "layers": _pick(rng, 2, 4, 8), "pp": pp}
    return drawn[family] | given


_MAKERS: dict[str, Callable[[dict[str, Any]], Template]] = {
    "ddp": ddp, "loop": loop, "fsdp": fsdp, "megatron": megatron, "moe": megatron, "pipeline": pipeline,
}  # fmt: skip


def template(family: str, rng: np.random.Generator, **sizes: Any) -> Template:
    """Template of `family` with `random_sizes`, `sizes` overriding; KeyError names an unknown family."""
    return _MAKERS[family](random_sizes(family, rng, **sizes))
