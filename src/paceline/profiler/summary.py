"""What a cycle showed, without a viewer: operators, layers, memory, as JSON and as text."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline.profiler.layers import MARK, OUTSIDE, Layers, by_layer, on_host
from paceline.profiler.plan import Plan

STEP = "ProfilerStep"
ROWS = 30
"""Of a table of operators."""

TOP = 3
MEMORY_ROWS = 10
ALLOCATORS = ("aten::empty", "aten::new_empty", "aten::resize_")
NOTE = (
    "Nothing in these steps synchronises: phases overlap as they do in any step, and there is no "
    "mode that waits for the device at each of them. Times are those of profiled steps, which take "
    "longer than others."
)


def summarise(
    profile: torch.profiler.profile, layers: Layers, plan: Plan, found: dict[str, Any]
) -> dict[str, Any]:
    """Of a stopped profiler. Seconds and bytes are sums over the recorded steps."""
    everything: list[Any] = list(profile.events() or [])
    events = [e for e in everything if not e.is_python_function]
    on_device = "cuda" in plan.activities
    steps = [e for e in events if e.name.startswith(STEP) and on_host(e)]
    return {
        "schema": 1,
        "rank": plan.world.rank,
        "world_size": plan.world.world_size,
        "device": str(plan.world.device),
        "activities": plan.activities,
        "slowest": plan.slowest,
        "steps": found["steps"],
        "asked_steps": found["asked_steps"],
        "step_s": [e.cpu_time_total / 1e6 for e in steps],
        "synchronises": False,
        "note": NOTE,
        "sorted_by": "self_device_s" if on_device else "self_cpu_s",
        "operators": _operators(events, on_device),
        "layers": [{"name": n, **asdict(row)} for n, row in by_layer(everything).items()],
        "layers_left_out": layers.left_out,
        "layers_why": layers.why,
        "memory": _memory(events, steps, on_device) if plan.settings.profile_memory else None,
    }


def top(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """The operators with the largest shares of all self time: `{name, share}`."""
    by, operators = whole["sorted_by"], whole["operators"]
    total = sum(o[by] for o in operators)
    return [{"name": o["name"], "share": o[by] / total} for o in operators[:TOP] if total and o[by]]


def write(path: Path, whole: dict[str, Any], profile: torch.profiler.profile) -> dict[str, str]:
    """`{path}.summary.json` and `{path}.operators.txt`; their names in the job's directory.
    Raises OSError."""
    named = {"summary": f"{path.name}.summary.json", "table": f"{path.name}.operators.txt"}
    (path.parent / named["summary"]).write_text(json.dumps(whole, indent=1) + "\n")
    (path.parent / named["table"]).write_text(_text(whole, profile))
    return {key: f"trace/{name}" for key, name in named.items()}


def _operators(events: list[Any], on_device: bool) -> list[dict[str, Any]]:
    """By self time, the longest first. Kernels stand with the operators that start them, unless the
    host isn't recorded."""
    wanted = [e for e in events if not e.name.startswith((MARK, STEP)) and not e.is_async]
    if any(on_host(e) for e in wanted):
        wanted = [e for e in wanted if on_host(e)]
    found: dict[str, dict[str, Any]] = {}
    for event in wanted:
        row = found.get(event.name)
        if row is None:
            row = found[event.name] = {"name": event.name, "count": 0}
            row |= {"self_cpu_s": 0.0, "cpu_s": 0.0, "self_device_s": 0.0 if on_device else None}
        row["count"] += 1
        if on_host(event):
            row["self_cpu_s"] += event.self_cpu_time_total / 1e6
            row["cpu_s"] += event.cpu_time_total / 1e6
        if on_device and not event.is_user_annotation:
            row["self_device_s"] += event.self_device_time_total / 1e6
    by = "self_device_s" if on_device else "self_cpu_s"
    return sorted(found.values(), key=lambda row: -row[by])


def _memory(events: list[Any], steps: list[Any], on_device: bool) -> dict[str, Any]:
    """`grown_bytes`: what each step took beyond what it gave back. A step on the CPU doesn't see
    what is given back of memory that is older than the recording, so the first one doesn't count
    in `growth_bytes_per_step`. `operators`: those that took most beyond what they gave back."""
    where = "device" if on_device else "cpu"
    grown = [int(getattr(step, f"{where}_memory_usage")) for step in steps]
    taken: dict[str, int] = {}
    for event in events:
        size = getattr(event, f"self_{where}_memory_usage")
        if size > 0 and event.name.startswith("aten::"):
            name = _taker(event)
            taken[name] = taken.get(name, 0) + int(size)
    largest = sorted(taken.items(), key=lambda item: -item[1])[:MEMORY_ROWS]
    later = grown[1:]
    return {
        "grown_bytes": grown,
        "growth_bytes_per_step": sum(later) / len(later) if later else None,
        "why": None if later else "growth is seen from step to step: record two steps or more",
        "operators": [{"name": name, "bytes": size} for name, size in largest],
    }


def _taker(event: Any) -> str:
    """The operator that memory is taken for: not that which only takes it."""
    while event.name.startswith(ALLOCATORS):
        parent = event.cpu_parent
        if parent is None or not parent.name.startswith("aten::"):
            break
        event = parent
    return str(event.name)


def _text(whole: dict[str, Any], profile: torch.profiler.profile) -> str:
    on_device = whole["sorted_by"] == "self_device_s"
    order = "self_device_time_total" if on_device else "self_cpu_time_total"
    averages = profile.key_averages()
    frames = {e.key for e in profile.events() or [] if e.is_python_function}
    averages[:] = [r for r in averages if r.key not in frames and not r.key.startswith(MARK)]
    steps = ", ".join(map(str, whole["steps"]))
    parts = [
        f"rank {whole['rank']}, steps {steps}\n{whole['note']}\n",
        averages.table(sort_by=order, row_limit=ROWS),
        *_layer_lines(whole, on_device),
        *_memory_lines(whole["memory"]),
    ]
    return "\n".join(parts) + "\n"


def _layer_lines(whole: dict[str, Any], on_device: bool) -> list[str]:
    """Forward and backward of each layer, ms a step, without what is in a row of its own."""
    count, device = len(whole["steps"]), "_device" if on_device else ""
    lines = [f"{whole['layers_left_out']} layers left out: {whole['layers_why']}"]
    lines = lines if whole["layers_why"] else []
    where = "on the device" if on_device else "on the CPU"
    lines.append(
        f"{'layer':<40}{'calls':>8}{'forward ms':>13}{'backward ms':>13}   a step, {where}"
    )
    for row in sorted(whole["layers"], key=lambda row: row["name"] == OUTSIDE):
        forward, backward = (
            1e3 * row[f"{way}{device}_self_s"] / count for way in ("forward", "backward")
        )
        calls = row["calls"] / count
        known = f"{calls:>8.3g}{forward:>13.3f}" if row["name"] != OUTSIDE else " " * 21
        lines.append(f"{row['name']:<40}{known}{backward:>13.3f}")
    return lines


def _memory_lines(memory: dict[str, Any] | None) -> list[str]:
    if memory is None:
        return []
    growth = memory["growth_bytes_per_step"]
    lines = ["", f"memory grows by {growth:.0f} bytes a step" if growth is not None else ""]
    if growth is None:
        lines[-1] = f"memory: {memory['why']}"
    lines.append(f"{'taken beyond what was given back by':<50}{'MB':>12}")
    return lines + [f"{o['name'][:49]:<50}{o['bytes'] / 1e6:>12.3f}" for o in memory["operators"]]
