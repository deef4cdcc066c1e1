"""What bounds the job, in the words of the record, from the shares of a trace."""

from __future__ import annotations

from typing import Any

from paceline.diagnose.trace.device import Device
from paceline.diagnose.trace.intervals import intersect, subtract
from paceline.diagnose.trace.main_thread import PARTS, MainThread

BOUND_AT = 50.0
"""Percent. What takes at least this of the time bounds it, else what takes at least this of an
idle time that does; else undetermined."""

HOST_PARTS = {
    "input": ("input_pct",),
    "compute": ("backward_pct", "forward_pct"),
    "communication": ("communication_pct",),
    "host": ("python_pct", "optimizer_pct"),
    "checkpoint": ("checkpoint_pct",),
    "recompile": ("compile_pct",),
}


def of_device(main: MainThread, found: Device, shares: dict[str, Any]) -> dict[str, Any]:
    """bound, share (0 to 1, of the span) and evidence, where the trace has a device."""
    span = found.span.total
    if not span:
        return undetermined(["the device activities have no length"])
    causes = _causes(main, found)
    idle = {name: 100 * ns / span for name, ns in causes.items()}
    words = {"compute": shares["compute_pct"], "communication": shares["communication_only_pct"]}
    words |= {name: idle[name] for name in ("input", "recompile", "host")}
    bound = max(words, key=lambda name: (words[name], name))
    late = max(("input", "recompile", "host"), key=lambda name: (idle[name], name))
    enough = words[bound] >= BOUND_AT
    if not enough and shares["idle_pct"] >= BOUND_AT:
        bound, enough = late, idle[late] >= shares["idle_pct"] * BOUND_AT / 100
    evidence = [_busy_sentence(shares), _idle_sentence(shares["idle_pct"], idle)]
    if not enough:
        return undetermined(evidence)
    return {"bound": bound, "share": words[bound] / 100, "evidence": evidence}


def of_host(parts: dict[str, Any], hidden: str | None) -> dict[str, Any]:
    """The same from the main thread's time, where the trace has no device. `hidden`: why one that
    worked isn't seen; operators that only launch say nothing of what computes then."""
    if parts["wall_us"] is None:
        return undetermined(["the trace holds no event to judge by"])
    known = {n: parts[n] for n in PARTS if parts[n] is not None and parts[n] >= 0.05}
    said = ", ".join(f"{name.removesuffix('_pct')} {value:.1f} %" for name, value in known.items())
    evidence = [f"of the main thread's time: {said or 'nothing that the trace names'}"]
    words = {
        name: sum(parts[p] for p in members)
        for name, members in HOST_PARTS.items()
        if all(parts[p] is not None for p in members)
    }
    bound = max(words, key=lambda name: (words[name], name))
    if hidden is not None:
        evidence.append(hidden)
        words = {name: words[name] for name in ("input", "recompile", "checkpoint")}
        bound = max(words, key=lambda name: (words[name], name))
    elif "compute" not in words and bound == "communication":
        evidence.append("whether it computes while a collective is under way isn't in the trace")
        return undetermined(evidence)
    if words[bound] < BOUND_AT:
        return undetermined(evidence)
    return {"bound": bound, "share": words[bound] / 100, "evidence": evidence}


def undetermined(evidence: list[str]) -> dict[str, Any]:
    return {"bound": "undetermined", "share": None, "evidence": evidence}


def _causes(main: MainThread, found: Device) -> dict[str, int]:
    """Idle ns by cause, each once: the host in the data loader, compiling, else late to launch."""
    waits = intersect(found.idle, main.parts["input_pct"])
    rest = subtract(found.idle, waits)
    compiles = intersect(rest, main.parts["compile_pct"])
    rest = subtract(rest, compiles)
    late = intersect(rest, found.launch_bound)
    return {
        "input": waits.total,
        "recompile": compiles.total,
        "host": late.total,
        "queued": intersect(rest, found.queued).total,
        "unlaunched": intersect(rest, found.unlaunched).total,
    }


def _busy_sentence(shares: dict[str, Any]) -> str:
    compute, alone = shares["compute_pct"], shares["communication_only_pct"]
    said = f"a compute kernel runs for {compute:.1f} %, communication alone for {alone:.1f} %"
    return f"{said}, copies alone for {shares['copy_only_pct']:.1f} %"


def _idle_sentence(whole: float, causes: dict[str, float]) -> str:
    words = {
        "input": "host in the data loader",
        "recompile": "host compiling",
        "host": "host late to launch",
        "queued": "launched, not begun",
        "unlaunched": "launch not in the trace",
    }
    held = sorted(((v, n) for n, v in causes.items() if v >= 0.05), reverse=True)
    said = ", ".join(f"{words[name]} {value:.1f} %" for value, name in held)
    return f"the device is idle for {whole:.1f} %" + (f": {said}" if said else "")
