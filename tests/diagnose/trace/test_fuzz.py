"""A thousand files that went wrong: an answer or a reason; no traceback, no wrong zero."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.diagnose.trace import device
from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.ranks import groups
from paceline.diagnose.trace.reading import NotATraceError, read
from paceline.report.diagnosis_lines import show
from tests.diagnose.trace.synthetic import (
    MAIN,
    annotation,
    copy,
    kernel,
    launch,
    operator,
    step,
    talk,
)

CASES = 1000

Made = list[Any]


def clean() -> Made:
    """Three steps with all kinds of events; nothing begins together with anything else."""
    made: Made = []
    for i in range(3):
        at, n = 1000.0 * i, 10 * i
        made += [step(i, at, 990), annotation("## forward ##", at + 1, 400)]
        made += [operator("aten::linear", at + 2, 300), operator("aten::addmm", at + 3, 200)]
        made += [launch(at + 10, 5, n + 1), kernel("gemm", at + 20, 200, n + 1)]
        made += [launch(at + 30, 5, n + 2), copy(at + 150, 100, n + 2)]
        told = {"Collective name": "allreduce", "In msg nelems": 100, "dtype": "Float"}
        made += [launch(at + 60, 5, n + 3), talk(at + 200, 150, n + 3, **told)]
        made += [annotation("nccl:all_reduce", at + 55, 20)]
        made += [launch(at + 600, 50, 0, "cudaStreamSynchronize")]
    return made


GARBAGE: list[Any] = [
    None, True, -1, 0, 1e308, -1e308, 1e-320, float("nan"), float("inf"), -float("inf"),
    10**25, 10**400, "", "x", "12.5", "},{", "]", "\ud800", [], {}, [[]], {"a": [{}, {}]},
    [{"ph": "X"}], {"correlation": {"correlation": 1}},
]  # fmt: skip


def shuffled(events: Made, draw: random.Random) -> bytes:
    draw.shuffle(events)
    return packed(events, draw)


def truncated(events: Made, draw: random.Random) -> bytes:
    data = packed(events, draw)
    return data[: draw.randrange(len(data))]


def fields(events: Made, draw: random.Random) -> bytes:
    for _ in range(draw.randrange(1, 12)):
        event = draw.choice(events)
        target = event if draw.random() < 0.7 else event["args"]
        if not isinstance(target, dict):
            continue
        key = draw.choice([*target, "ts", "dur", "correlation", "Input Dims"])
        if draw.random() < 0.3:
            target.pop(key, None)
        else:
            target[key] = draw.choice(GARBAGE)
    return packed(events, draw)


def negative(events: Made, draw: random.Random) -> bytes:
    for event in draw.sample(events, draw.randrange(1, len(events))):
        event["dur"] = -event["dur"]
    return packed(events, draw)


def doubled(events: Made, draw: random.Random) -> bytes:
    return packed(events + draw.choices(events, k=draw.randrange(40)), draw)


def mixed(events: Made, draw: random.Random) -> bytes:
    """Among the events what is none, some of it nested deeper than any parser follows."""
    for _ in range(draw.randrange(1, 6)):
        events.insert(draw.randrange(len(events)), draw.choice([*GARBAGE, "DEEP"]))
    whole = json.dumps({"traceEvents": events}).encode()
    levels = draw.randrange(5000)
    return whole.replace(b'"DEEP"', b"[" * levels + b"]" * levels)


def bytes_changed(events: Made, draw: random.Random) -> bytes:
    data = bytearray(packed(events, draw))
    for _ in range(draw.randrange(1, 20)):
        at = draw.randrange(len(data))
        if draw.random() < 0.5:
            data[at] = draw.randrange(256)
        else:
            del data[at : at + draw.randrange(30)]
    return bytes(data)


def no_device(events: Made, draw: random.Random) -> bytes:
    return packed([e for e in events if not str(e["cat"]).startswith(("kernel", "gpu"))], draw)


def nothing_like_it(events: Made, draw: random.Random) -> bytes:
    kinds = [
        b"",
        draw.randbytes(300),
        b"[" * 3000,
        b'{"traceEvents": [' * 50,
        b'{"traceEvents": {}}',
    ]
    kinds += [b"null", b"[]", b'{"traceEvents": []}', b"{" + draw.randbytes(99), b"\x1f\x8b\x08\0"]
    return draw.choice([*kinds, gzip.compress(draw.choice(kinds))])


def packed(events: Made, draw: random.Random) -> bytes:
    whole: Any = {"schemaVersion": 1, "traceEvents": events, "traceName": "x"}
    whole = events if draw.random() < 0.2 else whole
    data = json.dumps(whole, indent=draw.choice([None, 1])).encode()
    return gzip.compress(data, 1) if draw.random() < 0.3 else data


HARM = [shuffled, truncated, fields, negative, doubled, mixed, bytes_changed, no_device]
HARM += [nothing_like_it]
CHANGES_NOTHING = (shuffled,)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("clean") / "t"
    path.write_bytes(json.dumps({"traceEvents": clean()}).encode())
    return without_path(analyse(read(path)))


def without_path(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "path"}


def assert_honest(found: dict[str, Any]) -> None:
    """Null has a reason and a reason is of a null; shares are shares; JSON holds it."""
    json.dumps(found, allow_nan=False)
    for part in (found, found["steps"], *found["steps"]["each"]):
        for name in ("span_us", *device.SHARES):
            assert (part[name] is None) == (name in part["reasons"]), name
        for name in device.SHARES:
            assert part[name] is None or -1e-9 <= part[name] <= 100 + 1e-9, name
        if part["idle_pct"] is not None:
            parts = ("idle_pct", "compute_pct", "non_compute_pct")
            assert sum(part[name] for name in parts) == pytest.approx(100)


@pytest.mark.parametrize("harm", HARM, ids=lambda f: f.__name__)
def test_a_hundred_harmed_files_each(harm: Any, tmp_path: Path, straight: dict[str, Any]) -> None:
    read_at_all = 0
    for seed in range(-(-CASES // len(HARM))):
        draw = random.Random(f"{harm.__name__} {seed}")
        path = tmp_path / "t"
        path.write_bytes(harm(clean(), draw))
        try:
            trace = read(path)
        except NotATraceError as error:
            assert str(error).startswith("it ")
            continue
        read_at_all += 1
        found = analyse(trace)
        assert_honest(found)
        if seed % 4 == 0:
            with (tmp_path / "printed").open("w", encoding="utf-8") as file:
                shown = {"jobs": [], "traces": [found], "ranks": groups([found]), "skipped": []}
                show(shown, Console(file=file))
        if not len(trace.device):
            assert found["idle_pct"] is None, seed
        if harm in CHANGES_NOTHING:
            assert without_path(found) == straight, seed
        if harm is truncated:
            assert "cut off" in found["notes"][0], seed
    assert read_at_all > (0 if harm is nothing_like_it else 50)


def test_the_clean_trace_is_what_it_is_meant_to_be(straight: dict[str, Any]) -> None:
    assert straight["notes"] == []
    assert straight["idle_pct"] == pytest.approx(100 * 2 * 670 / 2330)
    assert straight["steps"]["numbers"] == [0, 1, 2]
    assert straight["syncs"]["count"] == 3
    assert straight["collectives"][0]["bytes"] == 400
    assert MAIN == 1
