"""A record of steps whose phases are known, to diagnose."""

from __future__ import annotations

from typing import Any

from paceline.record.schema import empty_record

STEPS = 100

CONFIG: dict[str, Any] = {
    "data": {"loader": {"num_workers": 0}, "global_batch_size": 8},
    "optimizer": {"fused": None},
    "compile": {"dynamic": None},
    "checkpoint": {"every_steps": 10},
}
CHOICES = {
    "compile": "off",
    "strategy": "single",
    "comm_hook": "none",
    "checkpoint": "sync",
    "diagnose": "intervene",
}


def record(ranks: int = 1, **phase_ms: float) -> dict[str, Any]:
    """STEPS steady steps; `checkpoint` and `recompile` recur beside them."""
    made = empty_record()
    recurring = {name: phase_ms.pop(name, 0.0) / 1e3 for name in ("checkpoint", "recompile")}
    phases = {name: STEPS * ms / 1e3 for name, ms in phase_ms.items()}
    made["throughput"] |= {"steps_measured": STEPS}
    made["effective"] = {
        "world_size": ranks,
        "threads_per_rank": 1,
        "device": "cpu",
        "data": {"workers": 0},
        "precision": {"reduction": "float32"},
    }
    made["requested"] = {"nnodes": 1, "checkpoint": {"option": "sync", "every_steps": 10}}
    made["environment"] = {"cores": 4}
    made["job"] |= {"overrides": ["run.steps=9", "repeat=0", "diagnose=intervene"]}
    made["ledger"] |= {
        "steady_wall_s": sum(phases.values()),
        "steady_phases_s": phases,
        "recurring_s": recurring,
        "slowest_rank": 0,
    }
    return made


def run(name: str, base_ms: float, ms: float, work: int = 1) -> dict[str, Any]:
    speedup = work * base_ms / ms
    return {
        "name": name,
        "step_s": ms / 1e3,
        "base_step_s": base_ms / 1e3,
        "work": work,
        "speedup": speedup,
        "speedup_ci95": [speedup, speedup],
        "units_per_s": 1.0,
    }
