# SPDX-License-Identifier: Apache-2.0
"""Importers of text meet pieces of their own format in any order: no exception but bad input, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghtools.stream.errors import GhError

from .feed import feed

# ruff: noqa: E501 (a table of pieces)
PIECES: dict[str, list[str]] = {
    "megatron": [
        " iteration ", "12/ 100 |", " elapsed time per iteration (ms): ", "(s): 1.5 |", "12.5 |", "1.2.3 |", "\n", "\r\n",
        "[rank3]:", "[default7]:", "2026-01-02 03:04:05,678 ", "9999-99-99 99:99:99 ", "iteration 99999999999999/ 1",
    ],
    "mllog": [
        ":::MLLOG ", '{"key": "tracked_stats", "value": {"throughput": 5}, "metadata": {"step_num": 3}, "time_ms": 5}',
        '{"key": "global_batch_size", "value": 1e308}', '{"key": 1}', "{", "}", "\n", " 0: ", '"time_ms": -1',
        '{"key": "tracked_stats", "value": {"step_time": 1e400}, "metadata": {"step_num": NaN}}',
    ],
    "steps": [
        "step:7/9 train_time:5ms", "step:", " 7/9 ", "train_time:99999999999999s ", "iter 3: loss 1, time 5ms", "\n", "\r",
        " 10%|##| 5/50 [00:10<00:20, 5.00it/s]", "Epoch 999999: ", "100%|", "global_step: 5 train_step_timing in s: 1",
        "2026-01-02 03:04:05 - INFO - step: 3  loss:", "\x1b[31m", "completed step: 3, seconds: 0.1",
    ],
    "golden": ["{", "}", "[", "]", ",", ":", '"1"', '"iteration-time"', '"values"', "1.5", '"a\\nb"', '"nan"', "null", "1e999", " ", "\n"],
    "series": ["1.5", "\n", ",", '"', "nan", "inf", "-1", "\t", ";", "abc", "1e308", "{", "["],
    "nccl-tests": [
        "# nThread 1 nGpus 1\n", "# Collective test starting: all_reduce_perf\n", "# Avg bus bandwidth : 1\n", "\n",
        "#  Rank  0 Group  0 Pid 1 on a device  0 [0]\n", "1024 256 float sum -1 1 1 1 0 1 1 1 N/A", " 1e999", " nan", "error",
        '{"version":1,"args":["x/all_reduce_perf"],"results":[', '{"size":1,"out_of_place":{"time":1}},', '],"average_bus_bandwidth":{"a":1}}',
    ],
    "nccl-log": [
        "a:1:2 [0] NCCL INFO ", "comm 0x1 rank 0 nranks 2 commId 0x9 - Init COMPLETE", "\n", ":", "b:2:3 [1] NCCL INFO ",
        "AllReduce: opCount ff sendbuff 0x1 recvbuff 0x2 count 9 datatype 7 op 0 root 0 comm 0x1 [nranks=2] stream 0x1",
        "Send: opCount 1 sendbuff (nil) recvbuff (nil) count 9999999999999999999 datatype 99 op 0 root -9999999999 comm 0x2",
    ],
    "nccl-inspector": [
        '{"header": {"id": "0x1", "rank": 0, "n_ranks": 2}, "coll_perf": {"coll": "AllReduce", "coll_exec_time_us": 5}}', "\n",
        '{"header": {"id": [], "rank": 1e5}, "p2p_perf": {"p2p": {}, "p2p_exec_time_us": -1}}', '{"rank": 1, "id": 7, ',
        '"coll_perf": {"coll": null}}', '"p2p_perf": {"p2p": "Send", "p2p_peer": 99999999999}}', "[", "]", "}",
    ],
    "prom": [
        '{"status":"success","data":{"resultType":"matrix","result":[', '{"metric":{"rank":"1"},"values":[[1,"2"],[3,"4"]]}', ",", "]}}",
        '{"metric":{},"values":[[', '1,"NaN"],[', '2,"1e999"]]}', '{"status":"error","error":"x\\ny"}', "null", '[1,"x"]',
    ],
    "allreduce-bench": ["1:\n", "2:\n", " duration: 1.5 sec\n", "1 data size: 4.0 GB\n", " duration: ", "999999:\n", "\n",
                        "a:1:2 [0] NCCL INFO comm 0x1 rank 5 nranks 999999 cudaDev 3"],
    "superbench": [
        '{"node": "a"', ', "x/return_code:0": 1', ', "x/y:7": 1.5', ', "x/y:7": null', ', "nccl-bw/z_busbw": 1e999', "}", "\n",
        '{"node": 5}', '{"node": "b", "a/return_code": -9999999999999999999999}', "[1]", "{",
    ],
    "nvidia-smi": [
        "==============NVSMI LOG==============\n", "Timestamp   : Tue Jul 14 08:12:38 2026\n", "GPU 00000000:00:09.0\n", "\n",
        "    GPU UUID       : GPU-1\n", "    Temperature\n", "        GPU Current Temp  : 41 C\n", "    MIG Device\n", "  : ",
        "        Index    : 0\n", "    Fan Speed   : N/A\n", "        HW Slowdown   : Active\n", "    " * 9, "    x : 999999999999999999 ms\n",
        "Timestamp   : Tue Jul 99 08:12:38 99999\n",
    ],
    "xid": [
        "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x", "[Sun Feb 23 16:24:18 2025] ", "[Sun Zzz 99 16:24:18 2025] ", "\n", "[   12.345678] ",
        "2026-99-01T00:00:00 ", "NVRM: Xid (", "): 99999, ", "NVRM: Xid (PCI:0000:9b:00): 9999999999",
    ],
    "rows": ["[", "]", "{", "}", ",", ":", '"a"', '"b"', "1.5", "null", "nan", "\n", "a,b\n", "1,x\n", ";", '{"a": {"b": 1}, "c": "x"}', "[[", "1e999"],
}  # fmt: skip
MORE = {
    "prom": [{}, {"as": "iters"}, {"as": "counter"}],
    "megatron": [{}, {"by": "rank"}],
    "steps": [{}, {"by": "rank"}],
    "rows": [{}, {"time": "a:d"}, {"labels": "b", "time": "c"}],
}


@pytest.mark.parametrize("name", PIECES)
@settings(max_examples=150)
@given(data=st.data())
def test_pieces_in_any_order(name: str, data: st.DataObject) -> None:
    piece = st.sampled_from([text.encode() for text in PIECES[name]]) | st.binary(max_size=8)
    files = data.draw(st.lists(st.lists(piece, max_size=25).map(b"".join), min_size=1, max_size=2))
    size = data.draw(st.sampled_from([0, 1, 17, 300]))
    more = data.draw(st.sampled_from(MORE.get(name, [{}])))
    try:
        fed = feed(name, *files, size=size, more=more)
    except GhError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert fed.reason == "done" or fed.reason.startswith("cut")
        assert all(len(text.splitlines()) == 1 for text in fed.said)
