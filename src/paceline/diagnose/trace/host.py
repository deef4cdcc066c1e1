"""What the host did: operators by self time, waits for the device, and what it was at while the
device was idle."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from paceline.diagnose.trace.columns import (
    ANNOTATION,
    CALL,
    OPERATOR,
    PYTHON,
    Ints,
    Trace,
)
from paceline.diagnose.trace.device import Device
from paceline.diagnose.trace.intervals import Spans, union
from paceline.diagnose.trace.kernels import by_name
from paceline.diagnose.trace.nesting import Nest, around, nest

SHOWN = 10
GAPS = 5

SYNC_CALLS = re.compile(
    r"^(cuda|hip)(DeviceSynchronize|StreamSynchronize|EventSynchronize|CtxSynchronize"
    r"|Memcpy|MemcpyWithStream|MemcpyDtoH|MemcpyHtoD)(_v\d+)?$|^cu(Ctx|Stream|Event)Synchronize$"
)
"""Runtime calls that return when the device is done: they wait."""

SYNC_OPERATORS = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero")
"""Operators that read a device's value on the host: they hold such a call."""

COMPILE_REGION = re.compile(r"^(Torch-Compiled Region|CompiledFunction$)")
COMPILING = re.compile(r"\(dynamo_timed\)$")

NO_COMPILING = "no work of the compiler is annotated: none was done, or torch is too old to say so"


def operators(trace: Trace, rows: Ints) -> tuple[list[dict[str, Any]], Nest]:
    """Operators of these host rows by self time, and how they and annotations nest."""
    kind = trace.kind[rows]
    held = nest(trace, rows[(kind == OPERATOR) | (kind == ANNOTATION)])
    own = held.own_ns(trace)
    mine = trace.kind[held.rows] == OPERATOR
    found = by_name(trace, held.rows[mine], own[mine])[:SHOWN]
    for line in found:
        del line["id"]
        line["self_us"] = line.pop("total_us")
        line["mean_self_us"] = line.pop("mean_us")
    return found, held


def syncs(trace: Trace, rows: Ints, held: Nest) -> dict[str, Any]:
    """Calls and operators, among these host rows, that make the host wait for the device.

    `calls`: of the runtime, by call and the operator or annotation that it ran in; `operators`:
    those that hold such a call (their time counts the call's too); total_us: of the calls alone.
    """
    calling = trace.kind[rows] == CALL
    waits = rows[calling & trace.named(SYNC_CALLS)[trace.name[rows]]]
    places = around(trace, held, waits)
    groups: dict[tuple[str, str | None, str | None], list[int]] = {}
    for row, place in zip(waits.tolist(), places.tolist(), strict=True):
        key = (trace.text(row), _at(trace, held, place), _within(trace, held, place))
        groups.setdefault(key, []).append(int(trace.end[row] - trace.start[row]))
    calls: list[dict[str, Any]] = [
        {
            "call": call,
            "where": where,
            "within": within,
            "count": len(ns),
            "total_us": sum(ns) / 1e3,
        }
        for (call, where, within), ns in groups.items()
    ]
    calls.sort(key=lambda c: (-c["total_us"], c["call"], str(c["where"]), str(c["within"])))
    named = np.isin(np.array(trace.names, object), SYNC_OPERATORS)
    reads = rows[(trace.kind[rows] == OPERATOR) & named[trace.name[rows]]]
    found = by_name(trace, reads, trace.end[reads] - trace.start[reads])
    keys = ("name", "count", "total_us")
    return {
        "count": len(waits),
        "total_us": int((trace.end[waits] - trace.start[waits]).sum()) / 1000,
        "calls": calls[:SHOWN],
        "operators": [{key: line[key] for key in keys} for line in found],
    }


def idle_stretches(trace: Trace, found: Device, rows: Ints) -> list[dict[str, Any]]:
    """The longest stretches without device activity, and what of these host rows covers most of
    each: the shortest event among those that run for more than half of it."""
    idle = found.idle
    took = idle.end - idle.start
    order = np.lexsort((idle.start, -took))[:GAPS]
    origin = int(found.busy.start[0]) if len(found.busy.start) else 0
    lines = []
    for at in order.tolist():
        start, end = int(idle.start[at]), int(idle.end[at])
        cause = "launch_bound" if _shares(found.launch_bound, start, end) else "queued"
        cause = "unlaunched" if _shares(found.unlaunched, start, end) else cause
        line = {"start_us": (start - origin) / 1000, "duration_us": (end - start) / 1000}
        lines.append(line | {"cause": cause, "host": _doing(trace, rows, start, end)})
    return lines


def compiling(trace: Trace, rows: Ints) -> dict[str, Any]:
    """Compiled regions that ran, and compiling itself, as far as torch annotates them."""
    regions = rows[trace.named(COMPILE_REGION)[trace.name[rows]]]
    spans = compile_spans(trace, rows)
    known = len(spans.start) > 0
    return {
        "regions": sorted({trace.text(row) for row in regions.tolist()}),
        "region_calls": len(regions),
        "region_us": union(trace.start[regions], trace.end[regions]).total / 1000,
        "compiles": len(spans.start) if known else None,
        "compile_us": spans.total / 1000 if known else None,
        "reasons": {} if known else dict.fromkeys(("compiles", "compile_us"), NO_COMPILING),
    }


def compile_spans(trace: Trace, rows: Ints) -> Spans:
    """When the compiler was at work."""
    busy = rows[trace.named(COMPILING)[trace.name[rows]]]
    return union(trace.start[busy], trace.end[busy])


def _doing(trace: Trace, rows: Ints, start: int, end: int) -> dict[str, Any] | None:
    near = rows[(trace.start[rows] < end) & (trace.end[rows] > start)]
    over = np.minimum(trace.end[near], end) - np.maximum(trace.start[near], start)
    most = near[2 * over > end - start]
    if not len(most):
        return None
    took = trace.end[most] - trace.start[most]
    row = int(most[np.lexsort((-np.arange(len(most)), took))[0]])
    share = min(int(trace.end[row]), end) - max(int(trace.start[row]), start)
    kinds = {OPERATOR: "operator", CALL: "call", ANNOTATION: "annotation", PYTHON: "python"}
    said = {"name": trace.text(row), "kind": kinds[int(trace.kind[row])]}
    return said | {"covers_pct": 100 * share / (end - start)}


def _shares(spans: Spans, start: int, end: int) -> bool:
    """Does it take more than half of the stretch?"""
    held = np.minimum(spans.end, end) - np.maximum(spans.start, start)
    return bool(2 * np.maximum(held, 0).sum() > end - start)


def _at(trace: Trace, held: Nest, place: int) -> str | None:
    return trace.text(held.rows[place]) if place >= 0 else None


def _within(trace: Trace, held: Nest, place: int) -> str | None:
    """The next annotation outside of a place."""
    place = int(held.parent[place]) if place >= 0 else -1
    while place >= 0 and trace.kind[held.rows[place]] != ANNOTATION:
        place = int(held.parent[place])
    return trace.text(held.rows[place]) if place >= 0 else None
