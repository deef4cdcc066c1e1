"""What was profiled, what it cost and where it lies, in lines."""

from __future__ import annotations

from typing import Any

from paceline.report.comm import said_bytes

Lines = list[tuple[str, str]]

PROBLEMS = 3

GROWTH = 1000
"""Bytes a step from which memory grows; a job's own curves take some tens."""


def lines(record: dict[str, Any]) -> Lines:
    """Nothing of a job that profiled nothing."""
    section = record["profiler"]
    texts = [text for cycle in section["cycles"] for text in _cycle(cycle)]
    texts += [f"memory of the device by its code: {path}" for path in section["snapshots"]]
    ratio = section["overhead_ratio"]
    if texts and ratio is not None:
        texts.append(f"a profiled step takes {ratio:.3g} times one that isn't; none is in the rate")
    texts += section["problems"][:PROBLEMS]
    return [("profile" if i == 0 else "", text) for i, text in enumerate(texts)]


def _cycle(cycle: dict[str, Any]) -> list[str]:
    steps = cycle["steps"]
    which = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    slowest = " (the slowest)" if cycle["slowest"] else ""
    where = "no trace kept"
    if cycle["trace"]:
        where = f"{cycle['trace']}, {said_bytes(cycle['compressed_bytes'])}"
    text = f"{which} of rank {cycle['rank']}{slowest}: {where}; {cycle['table']}"
    shares = ", ".join(f"{one['name']} {one['share']:.0%}" for one in cycle["top"])
    lines = [text, f"most self time: {shares}"] if shares else [text]
    growth = cycle["growth_bytes_per_step"]
    if growth is not None and growth >= GROWTH:
        lines.append(f"memory grows by {said_bytes(round(growth))} a step: what takes it is there")
    return lines
