"""One trace, analysed: the shares of the whole and of the steps, what bounds it, where to look."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.diagnose.trace import collectives, device, host, kernels, main_thread, verdict
from paceline.diagnose.trace.columns import CALL, STEP, Ints, Trace
from paceline.diagnose.trace.intervals import Spans, contains, union, window

NO_STEPS = "the trace has no ProfilerStep annotations: the whole trace as one"
CUT_DEVICE = "no device activity in what could be read of the trace"
UNRECORDED = "kernels are launched, but the trace has no device activity: it wasn't recorded"
NO_CALLS = "the trace has no calls of a device's runtime"


def analyse(trace: Trace) -> dict[str, Any]:
    """JSON-like: the flat shares of the whole trace, `steps`, `main_thread`, bound, share and
    evidence (of the steps), and tables of kernels, operators, collectives, idle stretches,
    synchronising calls and compiling (of the steps)."""
    whole = device.look(trace, trace.device)
    flat, reasons = _shares(trace, whole)
    main = main_thread.look(trace)
    windows = union(trace.start[trace.step_rows], trace.end[trace.step_rows])
    stepped = len(windows.start) > 0
    chosen = device.look(trace, device.launched_in(trace, windows)) if stepped else whole
    hidden = len(trace.device) > 0 or device.launches(trace) > 0
    steps = _steps(trace, main, chosen, windows, hidden) if stepped else _as_one(flat, reasons)
    parts, unknown = main.shares(windows if stepped else main.span)
    rows = trace.host
    rows = rows[contains(windows, trace.start[rows])] if stepped else rows
    said = (
        verdict.of_device(main, chosen, steps)
        if len(chosen.rows)
        else verdict.of_host(parts, steps["reasons"]["idle_pct"] if hidden else None)
    )
    return {
        "path": trace.path,
        "rank": trace.rank,
        "rank_from": trace.rank_from,
        "world_size": trace.world_size,
        "events": len(trace.kind),
        **flat,
        "reasons": reasons,
        "notes": [*trace.notes, *_several_devices(trace)],
        "steps": steps,
        "main_thread": parts | {"reasons": unknown},
        **said,
        **_tables(trace, chosen, rows),
    }


def _tables(trace: Trace, chosen: device.Device, rows: Ints) -> dict[str, Any]:
    by_self_time, held = host.operators(trace, rows)
    sizes, reasons = collectives.table(trace, np.concatenate((chosen.rows, rows)))
    calls = host.syncs(trace, rows, held)
    unknown = {}
    if not (trace.kind == CALL).any():
        calls |= {"count": None, "total_us": None}
        unknown = dict.fromkeys(("count", "total_us"), NO_CALLS)
    return {
        "kernels": kernels.top(trace, chosen.rows),
        "operators": by_self_time,
        "collectives": sizes,
        "collectives_reasons": reasons,
        "idle_stretches": host.idle_stretches(trace, chosen, rows),
        "syncs": calls | {"reasons": unknown},
        "compile": host.compiling(trace, rows),
    }


def _shares(trace: Trace, found: device.Device) -> tuple[dict[str, Any], dict[str, str]]:
    flat, reasons = device.shares(found)
    if not len(trace.device):
        why = UNRECORDED if device.launches(trace) else device.NO_DEVICE
        why = CUT_DEVICE if any("cut off" in note for note in trace.notes) else why
        reasons = dict.fromkeys(reasons, why)
    return flat, reasons


def _steps(
    trace: Trace,
    main: main_thread.MainThread,
    chosen: device.Device,
    windows: Spans,
    hidden: bool,
) -> dict[str, Any]:
    """All steps together, and each of its own. `hidden`: as for one."""
    flat, reasons = _shares(trace, chosen)
    if len(trace.device) and not len(chosen.rows):
        why = "no launch call of a device activity is inside of a ProfilerStep"
        reasons = dict.fromkeys(reasons, why)
    own = device.by_step(trace)
    each = [
        _step(trace, main, row, device.look(trace, rows), hidden)
        for row, rows in zip(trace.step_rows.tolist(), own, strict=True)
    ]
    return {
        "of": "what was launched inside of ProfilerStep annotations",
        "numbers": [step["step"] for step in each],
        "wall_us": windows.total / 1000,
        **flat,
        "reasons": reasons,
        "each": each,
    }


def _step(
    trace: Trace, main: main_thread.MainThread, row: int, found: device.Device, hidden: bool
) -> dict[str, Any]:
    """`wait_us`: communication while nothing is computed; `own_us`: the rest of the step's wall.
    `hidden`: the device worked, and isn't in the trace."""
    name = STEP.match(trace.text(row))
    here = window(int(trace.start[row]), int(trace.end[row]))
    flat, reasons = _shares(trace, found)
    wall, wait = here.total / 1000, found.exposed.total / 1000
    parts, unknown = main.shares(here)
    known = len(found.rows) > 0
    if not known and not hidden and "forward_pct" not in unknown:
        wait, known = wall * parts["communication_pct"] / 100, True
    return {
        "step": int(name[1]) if name else None,
        "wall_us": wall,
        "wait_us": wait if known else None,
        "own_us": max(wall - wait, 0.0) if known else None,
        **flat,
        "reasons": reasons,
        "main_thread": parts | {"reasons": unknown},
    }


def _as_one(flat: dict[str, Any], reasons: dict[str, str]) -> dict[str, Any]:
    return {"of": NO_STEPS, "numbers": [], "wall_us": None, **flat, "reasons": reasons, "each": []}


def _several_devices(trace: Trace) -> list[str]:
    pids = {trace.threads[t][0] for t in np.unique(trace.thread[trace.device]).tolist()}
    if len(pids) < 2:
        return []
    return [f"{len(pids)} devices are in the trace; busy means that any of them is"]
