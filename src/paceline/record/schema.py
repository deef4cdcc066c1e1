"""The record of a job: its sections, written atomically. Names are public (docs/design.md, 8)."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

SCHEMA = 1

STATES = (
    "pending",
    "running",
    "completed",
    "failed",
    "invalid",
    "skipped",
    "preempted",
    "interrupted",
)
RAN = ("completed", "invalid")
"""States of a job that ran to its end; `invalid`: a gate says that it didn't train."""

COMPUTE_DTYPES = ("float32", "tfloat32", "float16", "bfloat16")
"""Of matrix products, finest first; tfloat32 rounds like float16."""

PHASES_S = (
    "restart",
    "startup",
    "build",
    "loader_start",
    "compile",
    "warmup",
    "data_wait",
    "to_device",
    "forward",
    "backward",
    "comm",
    "optimizer",
    "checkpoint",
    "profiler",
    "evaluate",
    "gates",
    "intervene",
    "finish",
    "other",
)


def empty_record() -> dict[str, Any]:
    """Every section, with null for what isn't known: never 0, never a guess."""
    return {
        "schema": SCHEMA,
        "job": dict.fromkeys(
            [
                "id",
                "name",
                "dir",
                "overrides",
                "config_hash",
                "trial_hash",
                "work_hash",
                "sweep",
                "repeat",
                "tag",
                "seed",
                "command",
                "rerun",
                "nudge",
                "started_at",
                "scheduler",
            ]
        ),
        "status": dict.fromkeys(
            ["state", "kind", "message", "phase", "step", "rank", "traceback", "exit_code"]
        )
        | {"restarts": []},
        "validity": {"verdict": None, "reasons": []},
        "requested": {},
        "effective": {},
        "throughput": dict.fromkeys(
            [
                "unit",
                "steady_units_per_s",
                "ci95",
                "sustained_units_per_s",
                "ci_scope",
                "end_to_end_units_per_s",
                "per_device_units_per_s",
                "step_s_median",
                "step_s_p95",
                "steps_measured",
                "steps_excluded",
                "samples_used",
                "units_used",
                "units_per_step",
                "global_batch_size",
                "micro_batch_size",
                "epochs_measured",
                "mfu",
                "peak_flops",
            ]
        ),
        "ledger": {
            "wall_s": None,
            "steady_wall_s": None,
            "phases_s": dict.fromkeys(PHASES_S),
            "steady_phases_s": None,
            "recurring_s": None,
            "per_rank": [],
            "slowest_rank": None,
            "own_step_s": None,
        },
        "comm": dict.fromkeys(
            [
                "backend",
                "collectives",
                "bytes_per_step",
                "gradient_bytes_per_step",
                "gradient_bytes_uncompressed",
                "reductions",
                "expected",
                "exposed_s",
                "overlap_s",
                "compute_s",
                "unused_in_some_step",
            ]
        ),
        "memory": {"peak_device_gib": None, "peak_host_gib": None, "estimate": None},
        "utilisation": dict.fromkeys(
            [
                "gpu_percent",
                "gpu_memory_gib",
                "power_w",
                "cpu_percent",
                "host_memory_gib",
                "samples",
            ]
        )
        | {"reasons": {}},
        "numerics": {
            "loss": [],
            "grad_norm": [],
            "first_step": None,
            "final_loss": None,
            "eval_loss": None,
            "init_digest": None,
            "samples_digest": None,
            "params_changed": None,
            "grads_equal": None,
            "gradient": dict.fromkeys(
                [
                    "error",
                    "eager_error",
                    "allowed",
                    "norm",
                    "norm_error",
                    "norm_allowed",
                    "sketch",
                    "why",
                ]
            ),
            "coupled_by": [],
            "skipped_steps": None,
            "loss_scale": None,
            "unused_parameters": [],
            "unused_layers": [],
        },
        "compile": {
            "first_step_s": None,
            "compile_s": None,
            "cache": None,
            "frames_compiled": None,
            "frames_fallen_back": None,
            "graph_breaks": [],
            "recompiles": [],
            "limits_hit": [],
            "recompile_limit": None,
            "cudagraphs_skipped": None,
            "hints": [],
            "extra_s": None,
            "eager_step_s": None,
            "compiled_step_s": None,
            "speedup_over_eager": None,
            "speedup_ci95": None,
            "break_even_steps": None,
            "break_even_ci95": None,
            "break_even_why": None,
        },
        "counter_runs": [],
        "checkpoint": {
            "saves": [],
            "skipped": [],
            "resumed_from": None,
            "resharded": None,
            "restored": None,
            "host_peak_gib": None,
            "steady_before": [],
            "economics": None,
        },
        "profiler": {
            "traces": [],
            "summaries": [],
            "cycles": [],
            "snapshots": [],
            "problems": [],
            "reasons": [],
            "overhead_ratio": None,
        },
        "diagnosis": {"bound": None, "rank": None, "share": None, "evidence": [], "advice": []},
        "environment": {"source": None},
    }


def coarsest(*dtypes: str) -> str:
    """That of COMPUTE_DTYPES which rounds most; others (float64) count as float32."""
    known = [d for d in dtypes if d in COMPUTE_DTYPES]
    return max(known, key=COMPUTE_DTYPES.index, default=COMPUTE_DTYPES[0])


def write_json(path: Path, value: Any) -> None:
    """Replace the file in one step, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(_finite(value), indent=1, allow_nan=False) + "\n")
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None if there is no such file."""
    try:
        loaded: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return loaded


def _finite(value: Any) -> Any:
    """JSON has no NaN: text keeps what was seen, and no reader takes it for a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
