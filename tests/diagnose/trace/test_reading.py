"""Files as they come: plain and gzip, whole and cut, clean and odd."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.diagnose.trace import reading
from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.reading import NotATraceError, read
from tests.diagnose.trace.synthetic import kernel, launch, operator, step, text, traced, write


def many(count: int) -> list[dict[str, Any]]:
    """Kernels of 6 us, one each 10 us, each launched 5 us before; 40 % idle."""
    made: list[dict[str, Any]] = []
    for i in range(count):
        made.append(operator("aten::mm", 10 * i, 4))
        made.append(launch(10 * i, 3, i + 1))
        made.append(kernel("gemm", 10 * i + 5, 6, i + 1))
    return made


WRITINGS = {
    "compact": lambda d: json.dumps(d, separators=(",", ":")).encode(),
    "indented": lambda d: json.dumps(d, indent=2).encode(),
    "sorted, arguments first": lambda d: json.dumps(d, sort_keys=True).encode(),
    "bare list": lambda d: json.dumps(d["traceEvents"]).encode(),
    "with a byte order mark": lambda d: b"\xef\xbb\xbf" + json.dumps(d).encode(),
    "facts after the events": lambda d: json.dumps(
        {"traceEvents": d["traceEvents"], "x": [{}, {"a": [1]}], **d}
    ).encode(),
    "gzip": lambda d: gzip.compress(json.dumps(d).encode(), 1),
    "gzip in two members": lambda d: gzip.compress(json.dumps(d)[:777].encode(), 1)
    + gzip.compress(json.dumps(d)[777:].encode(), 1),
    "gzip with padding": lambda d: gzip.compress(json.dumps(d).encode(), 1) + b"\0" * 512,
}  # fmt: skip


@pytest.mark.parametrize("writing", WRITINGS)
@pytest.mark.parametrize("block", [4096, 1 << 20])
def test_every_way_to_write_a_trace_gives_the_same_rows(
    writing: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK", block)
    events = many(300)
    facts = {"schemaVersion": 1, "distributedInfo": {"rank": 3, "world_size": 8}}
    path = tmp_path / "any.name"
    path.write_bytes(WRITINGS[writing]({**facts, "traceEvents": events}))
    trace = read(path)
    assert len(trace.kind) == len(events)
    assert trace.notes == []
    assert int((trace.launch[trace.device] >= 0).sum()) == 300
    assert (trace.end - trace.start)[trace.device].tolist() == [6000] * 300
    if writing == "bare list":
        assert trace.rank is None
    else:
        assert (trace.rank, trace.world_size, trace.rank_from) == (3, 8, "distributedInfo")


def test_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    events = [*many(200), step(1, 0, 900), step(2, 900, 1100)]
    straight = analyse(traced(tmp_path, events))
    random.Random(5).shuffle(events)
    assert analyse(traced(tmp_path, events)) == straight


def test_the_rank_is_from_the_file_name_if_the_trace_has_none(tmp_path: Path) -> None:
    for name, rank in {"rank12.json": 12, "x_rank_3.1.json": 3, "Rank-0.json": 0}.items():
        trace = read(write(tmp_path / name, many(1)))
        assert (trace.rank, trace.rank_from) == (rank, "the file's name")
    trace = read(write(tmp_path / "crankshaft.json", many(1)))
    assert trace.rank is None
    assert "neither" in trace.rank_from


def test_times_of_today_keep_their_nanoseconds(tmp_path: Path) -> None:
    """us since the boot with three digits: floats that hold them, barely."""
    base = 4458676522690.655
    events = [kernel("a", base, 1.001), kernel("b", base + 3.002, 0.5)]
    trace = traced(tmp_path, events)
    assert trace.start.tolist() == [0, 3002]
    assert trace.end.tolist() == [1001, 3502]


ODD = {
    "no ts": {"ts": None},
    "ts is text": {"ts": "abc"},
    "ts is a list": {"ts": [1]},
    "ts is true": {"ts": True},
    "ts is NaN": {"ts": float("nan")},
    "dur is inf": {"dur": float("inf")},
    "dur is negative": {"dur": -5},
    "dur is missing": {"dur": None},
    "ts is beyond all times": {"ts": 1e300},
    "ts is a number of 400 digits": {"ts": 10**400},
}


@pytest.mark.parametrize("odd", ODD)
def test_an_event_that_cannot_be_placed_costs_only_itself(odd: str, tmp_path: Path) -> None:
    good = many(20)
    found = analyse(traced(tmp_path, [*good[:30], kernel("bad", 5, 500) | ODD[odd], *good[30:]]))
    expected = analyse(traced(tmp_path, good))
    (note,) = found["notes"]
    assert note.startswith("1 events were left out")
    assert found | {"notes": []} == expected


ODD_TYPES: dict[str, dict[str, Any]] = {
    "ts as text": {"ts": "205", "dur": "6"},
    "pid is a list": {"pid": [0]},
    "tid is a float": {"tid": 7.5},
    "no arguments": {"args": None},
    "arguments are a list": {"args": [1, 2]},
    "correlation is text": {"args": {"correlation": "abc"}},
    "correlation is huge": {"args": {"correlation": 10**30}},
    "a count of 400 digits": {"name": "nccl", "args": {"In msg nelems": 10**400, "dtype": "Float"}},
    "nested garbage": {"args": {"a": [{"b": [{}, {"c": None}]}, "},{", "]"]}},
    "a name that is a number": {"name": 5},
}


@pytest.mark.parametrize("odd", ODD_TYPES)
def test_odd_types_elsewhere_keep_the_event(odd: str, tmp_path: Path) -> None:
    events = many(20)
    events.append(kernel("odd", 205, 6) | ODD_TYPES[odd])
    found = analyse(traced(tmp_path, events))
    assert not [note for note in found["notes"] if "left out" in note]
    assert found["events"] == 61
    assert found["span_us"] == 206


def test_text_that_is_no_utf8_is_read(tmp_path: Path) -> None:
    data = text([kernel("gemm", 0, 5), kernel("NAME", 5, 5)]).replace(b"NAME", b"\xff\xfe")
    (tmp_path / "t.json").write_bytes(data)
    assert analyse(read(tmp_path / "t.json"))["span_us"] == 10


def test_names_keep_their_letters_beside_broken_events(tmp_path: Path) -> None:
    events = [operator("größe", 0, 5), kernel("bad", 5, 5), operator("größe", 10, 5)]
    data = json.dumps({"traceEvents": events}, ensure_ascii=False).encode()
    (tmp_path / "t.json").write_bytes(data.replace(b'"bad"', b'"b"ad"'))
    (line,) = analyse(read(tmp_path / "t.json"))["operators"]
    assert (line["name"], line["count"]) == ("größe", 2)


def test_numbers_that_json_lacks_are_read(tmp_path: Path) -> None:
    data = text([kernel("a", 0, 5), kernel("b", 5, 5) | {"args": {"bandwidth": float("inf")}}])
    assert b"Infinity" in data
    (tmp_path / "t.json").write_bytes(data)
    assert analyse(read(tmp_path / "t.json"))["span_us"] == 10


def test_broken_json_in_the_middle_costs_the_broken_event(tmp_path: Path) -> None:
    events = many(40)
    data = text(events).replace(b'"name": "gemm", "pid": 0, "tid": 7, "ts": 205', b'"name": "ge"mm')
    (tmp_path / "t.json").write_bytes(data)
    found = analyse(read(tmp_path / "t.json"))
    assert found["events"] == len(events) - 1
    assert "1 pieces of the file are no events" in found["notes"][0]


@pytest.mark.parametrize("packed", [True, False])
def test_a_cut_file_is_read_as_far_as_it_goes_and_says_so(packed: bool, tmp_path: Path) -> None:
    path = write(tmp_path / ("t.json.gz" if packed else "t.json"), many(5000))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    found = analyse(read(path))
    assert 4000 < found["events"] < 11000
    assert found["idle_pct"] == pytest.approx(40, abs=0.1)
    assert "cut off" in found["notes"][0]


def test_a_cut_before_the_devices_events_is_no_trace_of_a_cpu(tmp_path: Path) -> None:
    events = sorted(many(50), key=lambda e: str(e["cat"]))
    data = text(events)
    path = tmp_path / "t.json"
    path.write_bytes(data[: data.index(b'"kernel"')])
    found = analyse(read(path))
    assert found["idle_pct"] is None
    assert found["reasons"]["idle_pct"] == "no device activity in what could be read of the trace"


NO_TRACES = {
    "empty": b"",
    "text": b"not a trace",
    "binary": bytes(range(256)) * 20,
    "a number": b"17",
    "an object": b'{"a": 1}',
    "events that are no list": b'{"traceEvents": 5}',
    "empty gzip": gzip.compress(b""),
    "gzip of text": gzip.compress(b"hello"),
    "gzip magic alone": b"\x1f\x8b",
    "cut before its events": b'{"schemaVersion": 1, "devicePro',
}


@pytest.mark.parametrize("kind", NO_TRACES)
def test_what_is_no_trace_says_why(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(NO_TRACES[kind])
    with pytest.raises(NotATraceError, match=r"^it (is empty|is no JSON|has no traceEvents)"):
        read(path)


def test_a_trace_without_events_is_one(tmp_path: Path) -> None:
    found = analyse(traced(tmp_path, []))
    assert found["events"] == 0
    assert found["idle_pct"] is None
    assert found["main_thread"]["wall_us"] is None
    assert found["bound"] == "undetermined"


def test_begin_and_end_pairs_are_left_out_and_said(tmp_path: Path) -> None:
    odd = [
        kernel("a", 0, 5),
        {**operator("x", 0, 0), "ph": "B"},
        {**operator("x", 3, 0), "ph": "E"},
    ]
    assert "begin and end events" in analyse(traced(tmp_path, odd))["notes"][0]


PEAK = """
import re, sys
from pathlib import Path
from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.reading import read
if len(sys.argv) > 1:
    analyse(read(Path(sys.argv[1])))
# not ru_maxrss, which a process inherits from the one that started it
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
"""


def peak(*given: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *given],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return int(done.stdout)


def test_peak_memory_is_below_three_times_the_text(tmp_path: Path) -> None:
    events = many(30000)
    path = write(tmp_path / "t.json.gz", events)
    size = len(text(events))
    assert size > 10e6
    assert peak(str(path)) - peak() < 3 * size


def test_work_is_linear_in_the_number_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that the decoder sees: four times as many of a file four times as long."""
    seen: list[int] = []
    whole = reading.decode

    def counted(array: bytes) -> Any:
        seen.append(len(array))
        return whole(array)

    monkeypatch.setattr(reading, "decode", counted)
    monkeypatch.setattr(reading, "BLOCK", 1 << 16)
    sizes = []
    for count in (2000, 8000):
        seen.clear()
        assert len(traced(tmp_path, many(count)).kind) == 3 * count
        sizes.append(sum(seen))
    assert sizes[1] / sizes[0] == pytest.approx(4, rel=0.05)
    assert sizes[1] < 1.2 * len(text(many(8000)))


def test_columns_are_sorted_and_small(tmp_path: Path) -> None:
    trace = traced(tmp_path, many(100)[::-1])
    assert (np.diff(trace.start) >= 0).all()
    assert len(trace.names) == 3
