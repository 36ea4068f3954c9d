# SPDX-License-Identifier: Apache-2.0
"""What is no iteration and no call: benchmark results, reports of GPUs, kernel logs, rows of anything."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ghtools.source.importers import guess
from ghtools.source.samples import BATCH, MAX_SERIES, Samples
from ghtools.stream.errors import GhError
from ghtools.stream.records import Sample, Suspect

from .feed import Fed, feed, public

DAY = 86400 * 10**9


def series(fed: Fed) -> dict[tuple[str, ...], list[float]]:
    """Values by metric and the texts of its labels."""
    made: dict[tuple[str, ...], list[float]] = {}
    for sample in fed.of(Sample):
        made.setdefault((sample.metric, *sample.labels.values()), []).extend(sample.value.tolist())
    return made


def test_a_series_is_written_when_it_is_long_and_begun_anew() -> None:
    samples = Samples()
    out = [s for n in range(BATCH + 1) for s in samples.add("m", "s", {"a": "b"}, n, n / 2)]
    assert [len(s.value) for s in (*out, *samples.flush())] == [BATCH, 1]
    assert out[0].labels == {"a": "b"} and out[0].unit == "s" and out[0].t_ns[-1] == BATCH - 1


def test_however_many_series_there_are_few_are_held() -> None:
    samples = Samples()
    out = [s for n in range(MAX_SERIES + 5) for s in samples.add("m", "", {"n": str(n)}, 0, 1.0)]
    assert len(out) == MAX_SERIES and len(list(samples.flush())) == 5


SUPERBENCH = (
    '{"node": "n1", "kernel-launch/return_code": 0, "kernel-launch/event_time:0": 0.1, "mem-bw/return_code:0": 0, '
    '"mem-bw/return_code:1": 2, "mem-bw/h2d_bw:0": 25.5, "mem-bw/h2d_bw:1": null, "note": "x"}\n'
    '\n{"node": "n2", "kernel-launch/event_time:0": 0.005}\n'
)


def test_superbench_gives_each_node_its_metrics() -> None:
    assert guess(SUPERBENCH.encode()).NAME == "superbench"
    fed = feed("superbench", SUPERBENCH)
    made = series(fed)
    assert made[("kernel-launch/event_time", "n1", "0")] == [0.1]
    assert made[("kernel-launch/event_time", "n2", "0")] == [0.005]
    assert np.isnan(made[("mem-bw/h2d_bw", "n1", "1")]).all()
    units = {s.metric: s.unit for s in fed.of(Sample)}
    assert units["kernel-launch/event_time"] == "ms" and units["mem-bw/h2d_bw"] == "GB/s"
    assert not any(key[0] == "note" for key in made)


def test_a_benchmark_that_failed_is_said_and_is_no_slow_node() -> None:
    [suspect] = feed("superbench", SUPERBENCH).of(Suspect)
    assert (suspect.what, suspect.hosts, suspect.verdict) == ("host", ["n1"], "inconclusive")
    assert suspect.evidence == {"test": "mem-bw", "return_codes": [2]}


def test_a_broken_node_is_named_by_its_line_after_what_was_sound() -> None:
    fed = feed("superbench", SUPERBENCH + '{"node": "n3", ')
    assert fed.reason.startswith("cut") and len(series(fed)) > 3
    assert len(fed.said) == 1 and "line 4" in fed.said[0]


REPORT = """\
==============NVSMI LOG==============

Timestamp                                 : Tue Jul 14 08:12:38 2026
Attached GPUs                             : 2
GPU 00000000:00:09.0
    Persistence Mode                      : Enabled
    Serial Number                         : 1650124014249
    Fan Speed                             : N/A
    MIG Device
        Index                             : 1
        ECC Errors
            Volatile
                SRAM Uncorrectable        : 3
    GPU UUID                              : GPU-a
    GPU Link Info
        Link Width
            Max                           : 16x
            Current                       : 8x
    Clocks Event Reasons
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
        Sync Boost                        : Not Active
    Temperature
        GPU Current Temp                  : 87 C
    Processes                             : None

GPU 00000000:00:0A.0
    GPU UUID                              : GPU-b
    Temperature
        GPU Current Temp                  : 41 C
not of this: 5 C
    GPU Current Temp                      : 99 C
"""


@pytest.mark.parametrize("size", [0, 1])
def test_a_report_is_read_section_by_section(size: int) -> None:
    assert guess(REPORT.encode()).NAME == "nvidia-smi"
    fed = feed("nvidia-smi", REPORT, size=size)
    made = series(fed)

    def a(metric: str, *mig: str) -> tuple[str, ...]:
        return (metric, "00000000:00:09.0", "GPU-a", *mig)

    assert made[a("persistence_mode")] == [1]  # though it stands before the uuid
    assert made[a("mig_device.ecc_errors.volatile.sram_uncorrectable", "1")] == [3]
    assert made[a("gpu_link_info.link_width.current")] == [8]
    assert made[a("clocks_event_reasons.hw_thermal_slowdown")] == [1]
    assert made[a("clocks_event_reasons.sync_boost")] == [0]
    assert made[a("temperature.gpu_current_temp")] == [87]
    assert made["temperature.gpu_current_temp", "00000000:00:0a.0", "GPU-b"] == [41]
    assert not any("serial" in key[0] or "fan" in key[0] for key in made)
    assert {s.t_ns[0] for s in fed.of(Sample)} == {1784016758 * 10**9}


def test_a_report_without_a_gpu_is_bad_input() -> None:
    assert feed("nvidia-smi", "hello\n").reason.startswith("cut")


LOG = """\
[Sun Feb 23 16:24:18 2025] NVRM: Xid (PCI:0000:9b:00): 119, pid=1, name=x, Timeout
2025-02-23T16:24:24 host kernel: NVRM: Xid (PCI:0000:9b:00): 119, pid=1
[   12.500000] NVRM: Xid (PCI:0000:1B:00): 12345, something new
[   13.500000] usb 1-1: new device
"""


def test_xids_by_gpu_and_code() -> None:
    assert guess(LOG.encode()).NAME == "xid"
    known, new = feed("xid", LOG).of(Sample)
    assert known.labels == {"pci": "0000:9b:00", "xid": "119", "means": "GSP RPC timeout"}
    assert known.t_ns.tolist() == [1740327858 * 10**9, 1740327864 * 10**9]
    assert new.labels == {"pci": "0000:1b:00", "xid": "12345"} and new.t_ns.tolist() == [12_500_000_000]


def test_a_log_without_xids_is_said_to_be_no_sign_of_health() -> None:
    fed = feed("xid", "all is well\n")
    assert fed.reason.startswith("cut") and "no sign of health" in fed.said[0]


ROWS = {
    "list": '[{"t": 1.5, "what": {"a": "x", "n": 2}}, {"t": 2, "what": {"a": "y", "n": 3}}]',
    "lines": '{"t": 1.5, "what": {"a": "x", "n": 2}}\n{"t": 2, "what": {"a": "y", "n": 3}}\n',
    "csv": "t,what.a,what.n\n1.5,x,2\n2,y,3\n",
}


@pytest.mark.parametrize("form", ROWS)
@pytest.mark.parametrize("size", [0, 3])
def test_rows_of_any_form_are_the_same(form: str, size: int) -> None:
    fed = feed("rows", ROWS[form], size=size, more={"time": "t:d"})
    x, y = fed.of(Sample)
    assert (x.metric, x.labels, x.value.tolist(), x.t_ns.tolist()) == ("what.n", {"what.a": "x"}, [2], [1.5 * DAY])
    assert (y.metric, y.labels, y.value.tolist(), y.t_ns.tolist()) == ("what.n", {"what.a": "y"}, [3], [2 * DAY])


def test_columns_and_labels_are_picked_and_a_missing_one_is_said() -> None:
    text = "a,b,c,d\n1,2,x,y\n3,4,x,z\n"
    fed = feed("rows", text, column="b,nothing", more={"labels": "c"})
    assert series(fed) == {("b", "x"): [2, 4]}
    assert fed.said == ["no row has nothing"]
    assert series(feed("rows", text, column="b", more={"labels": ""})) == {("b",): [2, 4]}


def test_rows_without_numbers_are_counted() -> None:
    fed = feed("rows", '[{"kind": "up"}, {"kind": "down"}, {"kind": "up"}]')
    assert series(fed) == {("rows", "up"): [1, 1], ("rows", "down"): [1]}


@pytest.mark.parametrize(
    "text", ["", "[]", "[1, 2]", "[[1]]", '{"a": 1}\nx\n', '{"a": [1]}', "1,2\n3,4\n", "\xff\xfe,b\n"]
)
def test_what_is_no_row_is_one_line(text: str) -> None:
    fed = feed("rows", text.encode("latin-1"))
    assert fed.reason.startswith("cut") and len(fed.said) == 1


def test_a_unit_that_is_none_is_wrong_usage() -> None:
    with pytest.raises(GhError, match="no such unit"):
        feed("rows", "a\n1\n", more={"time": "a:weeks"})


@pytest.mark.public_data
def test_the_published_files() -> None:
    suspects = feed("superbench", public("superbench", "analyzer", "test_results.jsonl")).of(Suspect)
    assert [s.hosts for s in suspects] == [["sb-validation-03"]]
    [xid] = feed("xid", public("health", "dmesg-xid-119.txt")).of(Sample)
    assert (xid.labels["pci"], xid.labels["xid"]) == ("0000:9b:00", "119")
    temperatures = series(feed("nvidia-smi", public("health", "nvidia-smi-q.h100.txt")))
    assert sum(len(v) for key, v in temperatures.items() if key[0] == "temperature.gpu_current_temp") == 2
    more = {"labels": "event_type,fault_type.Class", "time": "event_time:d"}
    faults = series(feed("rows", public("stepfun", "fault_trace.json"), more=more))
    statistics = json.loads(public("stepfun", "fault_statistics.json"))
    assert len(faults[("rows", "fault_start", "GPU")]) == statistics["Hardware Failure"]["GPU"]["ClassTotal"]
    assert sum(len(values) for values in faults.values()) == 1168
