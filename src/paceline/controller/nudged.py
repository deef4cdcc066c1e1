"""Runs of a sweep's baseline whose initial parameters are off by one unit in the last place: how
far apart their losses come is what rounding alone does to this training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.compare.spread import WORDS
from paceline.controller.plan import Job
from paceline.record.schema import coarsest

QUIET = {
    "checkpoint": {
        "_target_": "paceline.checkpoint.off.Off",
        "every_steps": 1,
        "keep_last": 1,
        "keep_every": None,
        "verify": False,
        "resume": "off",
        "strict": False,
        "on_failure": "stop",
        "mtbf_s": 1.0,
    },
    "profiler": {"_target_": "paceline.profiler.off.Off"},
    "diagnose": {"_target_": "paceline.diagnose.off.Off"},
}
"""Only the losses matter: nothing is saved, traced or explained, no rate is measured."""


def nudged(jobs: list[Job], baseline: str | None) -> list[Job]:
    """The runs that `sweep.nudged_baselines` asks for, so many for each compute dtype that the
    comparison of a cell with the baseline needs; none where the baseline has nothing beside it.
    `baseline`: its config_hash."""
    base = next((job for job in jobs if job.config_hash == baseline), None)
    if base is None:
        return []
    beside = [j for j in jobs if j.work_hash == base.work_hash and j.config_hash != baseline]
    dtypes = dict.fromkeys(coarsest(_computes(base), _computes(job)) for job in beside)
    count = base.config["sweep"]["nudged_baselines"]
    return [_nudged(base, dtype, n) for dtype in dtypes for n in range(1, count + 1)]


def _nudged(base: Job, dtype: str, number: int) -> Job:
    run, measure = base.config["run"], base.config["measure"]
    config = base.config | QUIET
    config["run"] = run | {"eval_batches": 0}
    config["measure"] = measure | {"window_s": 0.0, "gradient_check": False}
    if "compare_eager" in base.config["compile"]:
        config["compile"] = base.config["compile"] | {"compare_eager": False}
    return replace(
        base,
        config=config,
        directory=base.directory.with_name(f"{base.name}.nudge_{dtype}_{number}"),
        requested=base.requested
        | {"checkpoint": {"option": "off", "every_steps": None, "mtbf_s": None}},
        nudge={"number": number, "dtype": dtype},
    )


def _computes(job: Job) -> str:
    """By what was asked for, as compare/spread.py sees what ran: products, and gradients between
    ranks. A precision of the user's that names no dtype computes in float32."""
    precision: dict[str, Any] = job.config["precision"]
    words = [precision.get("dtype"), precision.get("float32_matmul"), job.choices.get("comm_hook")]
    return coarsest(*(WORDS[word] for word in words if word in WORDS))
