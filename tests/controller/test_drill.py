"""A drill's parts without processes: digests, what a run is held to, how a job is derived."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from paceline.controller.certificate import (
    FAILED,
    PARTIAL,
    PASSED,
    Base,
    entry,
    settle_samples,
    verdict_of,
)
from paceline.controller.drilled import DDP, SINGLE, Ran, another_world, cannot, derived
from paceline.controller.plan import Job
from paceline.record.digests import digests
from paceline.record.schema import empty_record

CONF = Path(__file__).parents[2] / "conf"
FILES = {"model.w": "a", "position.step": "b", "ranks.0.rng.torch": "c"}


def test_digests_tell_values_shapes_and_dtypes_apart() -> None:
    weight = torch.arange(6.0)
    one = digests({"w": weight, "betas": (0.9, 0.95), "empty": {}, "many": [weight, 1]})
    assert set(one) == {"w", "betas", "many.0", "many.1"}
    assert one["w"] == one["many.0"]
    assert digests({"betas": [0.9, 0.95]})["betas"] == one["betas"]
    others = [weight.view(2, 3), weight.double(), weight.bfloat16(), weight + 1, weight.view(6, 1)]
    assert len({one["w"], *(digests({"w": other})["w"] for other in others)}) == 6
    strided = torch.arange(12.0)[::2]
    assert digests({"w": strided}) == digests({"w": strided.clone()})
    assert digests({"x": 1}) != digests({"x": 1.0}) != digests({"x": True})


@pytest.mark.parametrize(("option", "node"), [("ddp", DDP), ("single", SINGLE)])
def test_strategies_are_those_of_their_yaml(option: str, node: dict[str, Any]) -> None:
    assert node == choice(f"strategy/{option}")


@pytest.mark.parametrize(("batch", "other"), [(64, 2), (9, 3), (7, 7), (11, None)])
def test_another_number_of_ranks_shares_the_batch(batch: int, other: int | None) -> None:
    found, why = another_world(job(batch=batch), 1)
    assert found == other
    assert bool(why) == (other is None)


def test_a_job_is_derived_for_other_ranks() -> None:
    base = job()
    made = derived(base, Path("/x/drill/001/a"), 2, Path("/x/checkpoint/step_00000020"), 25, 25)
    assert made.requested["strategy"] == "ddp" and made.config["strategy"] == DDP
    assert made.config["launch"]["nproc"] == made.requested["world_size"] == 2
    assert made.config["checkpoint"]["resume"] == "/x/checkpoint/step_00000020"
    assert made.config["run"]["steps"] == 25 and made.digests
    assert (made.work_hash, made.config["data"]) == (base.work_hash, base.config["data"])
    assert base.config["run"]["steps"] == 30  # the job itself is as it was
    back = derived(
        replace(base, requested=base.requested | {"strategy": "hsdp"}), Path(), 1, Path(), 1, 1
    )
    assert back.config["strategy"] == SINGLE
    assert cannot(base, 1) == []
    (problem,) = cannot(base, 3)
    assert problem.startswith("data.global_batch_size=64: 3 ranks")


def test_what_as_many_ranks_restored_must_be_equal_to_the_bit() -> None:
    base = Base(record([1.0, 0.9, 0.8]), "the job's own record")
    found = entry(ran([1.0, 0.9, 0.8]), "step_00000001", FILES, base, ranks=1)
    assert found["verdict"] == PASSED and found["reasons"] == []
    assert found["losses"] == {"bit_equal": True, "max_rel_diff": 0.0, "tolerance": 0.0}
    off = entry(ran([1.0, 0.9, 0.8 + 1e-9]), "step_00000001", FILES, base, ranks=1)
    assert off["verdict"] == FAILED
    assert "the loss of step 2 is 0.800000001, 0.8 in the job's own record" in off["reasons"][0]


def test_other_ranks_are_held_to_a_tolerance() -> None:
    base = Base(record([1.0, 0.9, 0.8]), "the job's own record")
    near = entry(ran([1.0, 0.9, 0.80001], 2), "step_00000001", FILES, base, ranks=1)
    assert near["verdict"] == PASSED and near["digests"]["total"] == 2  # none of a rank's own
    far = entry(ran([1.0, 0.9, 0.802], 2), "step_00000001", FILES, base, ranks=1)
    assert far["verdict"] == FAILED and "1e-04 is allowed" in far["reasons"][-1]


def test_layers_that_couple_samples_are_not_compared_over_other_ranks() -> None:
    base = Base(record([1.0, 0.9, 0.8], coupled_by=["BatchNorm1d"]), "the job's own record")
    found = entry(ran([1.0, 0.5, 0.5], 2), "step_00000001", FILES, base, ranks=1)
    assert found["verdict"] == PARTIAL and found["losses"] is None
    assert "BatchNorm1d" in found["reasons"][-1]
    same = entry(ran([1.0, 0.5, 0.5]), "step_00000001", FILES, base, ranks=1)
    assert same["verdict"] == FAILED


def test_parts_restored_otherwise_and_other_samples_fail() -> None:
    base = Base(record([1.0, 0.9, 0.8]), "the job's own record")
    wrong = ran([1.0, 0.9, 0.8], digests={**FILES, "model.w": "other", "model.more": "d"})
    found = entry(wrong, "step_00000001", FILES, base, ranks=1)
    assert found["digests"] == {"equal": 2, "total": 4, "differing": ["model.w", "model.more"]}
    assert found["verdict"] == FAILED
    good = entry(ran([1.0, 0.9, 0.8]), "step_00000001", FILES, base, ranks=1)
    other = entry(ran([1.0, 0.9, 0.8], 2, samples="ff"), "step_00000001", FILES, base, ranks=1)
    assert verdict_of([good, other], []) == PASSED
    settle_samples([good, other])
    assert good["samples_equal"] is other["samples_equal"] is False
    assert verdict_of([good, other], []) == FAILED


def test_a_run_that_broke_off_says_why() -> None:
    broken = ran([])
    broken.record["status"] |= {"state": "failed", "message": "rank 0: no\nmore"}
    found = entry(replace(broken, digests=None), "step_00000001", FILES, None, ranks=1)
    assert found["verdict"] == FAILED and found["digests"] is None
    assert found["reasons"] == ["did not come to step 3: rank 0: no"]


def test_what_could_not_be_run_makes_it_partial() -> None:
    assert verdict_of([], []) == PASSED
    assert verdict_of([], ["another number of ranks: no"]) == PARTIAL


def job(batch: int = 64, ranks: int = 1) -> Job:
    config: dict[str, Any] = {
        "model": {"_target_": "paceline.model.mlp.Mlp"},
        "data": {"global_batch_size": batch},
        "strategy": SINGLE,
        "activation_checkpointing": choice("activation_checkpointing/off"),
        "optimizer": {"lr": 0.1},
        "compile": {},
        "comm_hook": choice("comm_hook/none"),
        "precision": {"dtype": None},
        "checkpoint": {"every_steps": 10},
        "scheduler": {},
        "profiler": {},
        "diagnose": {},
        "launch": choice("launch/local"),
        "measure": {"warmup_steps": 10, "window_s": 5.0, "gradient_check": "auto"},
        "run": {"steps": 30, "accumulation_steps": 1, "device": "cpu", "eval_batches": 1},
        "scaling": {"mode": "weak", "learning_rate": "linear", "base_batch_size": None},
        "tag": None,
    }
    requested = {"world_size": ranks, "strategy": "single", "device": "cpu", "threads_per_rank": 1}
    choices = {"strategy": "single", "compile": "off"}
    return Job(config, [], choices, "cell", Path("/x"), requested, "hash", "work", 0)


def choice(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    return found


def record(losses: list[float], samples: str = "aa", coupled_by: Any = ()) -> dict[str, Any]:
    made = empty_record()
    made["status"]["state"] = "completed"
    made["requested"] = {"world_size": 1, "strategy": "single", "nnodes": 1, "precision": "fp32"}
    made["environment"] = {"torch": "2", "cpu": "x"}
    made["numerics"] |= {"loss": losses, "samples_digest": samples}
    made["numerics"]["coupled_by"] = list(coupled_by)
    made["checkpoint"]["restored"] = {"restored": [], "rederived": [], "reset": []}
    return made


def ran(
    losses: list[float],
    ranks: int = 1,
    samples: str = "aa",
    digests: dict[str, str] | None = None,
) -> Ran:
    """Restored at step 1, run up to step 3."""
    given = job(ranks=ranks)
    return Ran(given, (1, 3), record(losses, samples), FILES if digests is None else digests)
