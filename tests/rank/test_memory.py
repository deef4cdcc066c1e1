"""The memory estimate: exact against real tensors, and never of the size of what it looks at."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from paceline import config
from paceline.controller.plan import Job
from paceline.rank.memory import Live, estimate, planned, sizes
from paceline.rank.room import available_bytes, left_to_cgroups, shards
from paceline.types import Context, Data, Precision, Run, World
from tests.controller.test_plan import planned_job

ONE = World(0, 0, 0, 1, torch.device("cpu"))
SMALL = ["model.layers=2", "model.width=64", "data.max_bytes=400000"]
JOBS = {
    "gpt": SMALL,
    "gpt bf16": [*SMALL, "precision=bf16"],
    "gpt bf16_pure": [*SMALL, "precision=bf16_pure"],
    "gpt blocks": [*SMALL, "activation_checkpointing=blocks"],
    "gpt selective": [*SMALL, "activation_checkpointing=selective"],
    "resnet sgd": ["model=resnet", "data=digits", "optimizer=sgd"],
    "mlp fused": ["model=mlp", "data=digits", "data.flatten=true", "optimizer.fused=true"],
}


class Real:
    """A job's parts as a rank makes them, before they are wrapped."""

    def __init__(self, job: Job, world: World = ONE) -> None:
        self.config = job.config
        run: Run = config.settings(self.config["run"], Run)
        self.context = Context(world, run, Path(), config.build)
        self.data: Data = self.make("data")
        torch.manual_seed(0)
        self.model: nn.Module = self.make("model").train()
        self.precision: Precision = self.make("precision")
        self.precision.prepare(self.model)
        self.make("activation_checkpointing")(self.model)

    def make(self, group: str, **given: Any) -> Any:
        return config.build(self.config[group], self.context, **given)

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.config, self.context, self.data, self.model, self.precision

    def step(self) -> tuple[Tensor, int, int]:
        """Loss, bytes that its graph keeps, bytes of the optimizer's state after one step."""
        held = [*self.model.parameters(), *self.model.buffers()]
        batch = next(self.data.batches(0))
        with Live(held) as live:
            batch = tree_map_only(Tensor, torch.clone, batch)
            with self.precision.forward():
                loss, weight = self.make("loss")(self.model, batch)
            kept = live.bytes()
        del weight
        loss.backward()
        optimizer = self.make("optimizer", params=list(self.model.parameters()))
        optimizer.step()
        return loss.detach(), kept, total(tree_leaves([*optimizer.state.values()]))


def total(tensors: Any) -> int:
    return sum(t.nbytes for t in tensors if t is not None)


@pytest.fixture(scope="module", params=JOBS)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Real:
    return Real(planned_job(tmp_path_factory.mktemp("job"), *JOBS[request.param]))


def test_it_is_what_a_real_step_takes(real: Real) -> None:
    found = sizes(*real.parts)
    _, kept, state = real.step()
    parameters = list(real.model.parameters())
    assert found.parameters == total(parameters)
    assert found.gradients == total(p.grad for p in parameters)
    assert found.optimizer == state
    assert found.activations == kept > 0
    blocks = [total(b.parameters()) for b in real.model.blocks()]  # type: ignore[operator]
    assert found.largest_block == max(blocks)
    assert found.outside_blocks == total(parameters) - sum(blocks)


def test_the_hooks_of_autograd_see_nearly_as_much(tmp_path: Path) -> None:
    real = Real(planned_job(tmp_path, *SMALL))
    known = {p.untyped_storage().data_ptr() for p in real.model.parameters()}
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        loss, _ = real.make("loss")(real.model, next(real.data.batches(0)))
    assert loss.requires_grad
    assert sum(kept.values()) == pytest.approx(sizes(*real.parts).activations, rel=0.01)


def test_the_job_is_not_changed(tmp_path: Path) -> None:
    job = planned_job(tmp_path, *JOBS["gpt selective"])
    alone, looked_at = Real(job), Real(job)
    state = torch.get_rng_state()
    before = {key: (value, value.clone()) for key, value in looked_at.model.state_dict().items()}
    assert estimate(*looked_at.parts)["why"] is None
    assert torch.equal(torch.get_rng_state(), state)
    assert looked_at.model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, copy) for value, copy in before.values())
    assert torch.equal(alone.step()[0], looked_at.step()[0])
    assert alone.data.digest(1) == looked_at.data.digest(1)


def test_planned_and_made_are_the_same(tmp_path: Path) -> None:
    for name in ("gpt bf16", "gpt bf16_pure", "gpt selective"):
        job = planned_job(tmp_path, *JOBS[name])
        made, plan = estimate(*Real(job).parts), planned(job.config, ONE)
        for key in made:
            if key not in ("available_gib", "advice"):
                assert made[key] == plan[key], key


class Branching(nn.Module):
    """A branch that depends on the data, after a mess in what the whole process shares."""

    def __init__(self, inputs: int, hidden: list[int], outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        os.environ["LEFT"] = "1"
        out: Tensor = self.head(x)
        return out if out.sum() > 0 else -out


def test_what_cannot_run_on_fake_tensors_is_unknown(tmp_path: Path) -> None:
    words = ["model=mlp", "data=digits", "data.flatten=true"]
    job = planned_job(tmp_path, *words, f"model._target_={__name__}.Branching")
    threads = torch.get_num_threads()
    found = estimate(*Real(job).parts)
    assert found["advice"] is None and found["parameters_gib"] is None
    assert found["why"].startswith("it can't run on fake tensors (DataDependentOutputException")
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
    assert "LEFT" not in os.environ


def test_no_held_out_batch(tmp_path: Path) -> None:
    real = Real(planned_job(tmp_path, *SMALL))
    real.data.held_out_set = []  # type: ignore[attr-defined]
    assert "gives no held-out batch to look at" in estimate(*real.parts)["why"]


def test_a_job_that_does_not_fit_says_so_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = planned_job(tmp_path, *SMALL, "strategy=ddp")
    with caplog.at_level(logging.WARNING, logger="memory"):
        assert estimate(*Real(job).parts)["fits"] is True
        assert not caplog.records
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(10**5))  # each rank has little
        found = estimate(*Real(job).parts)
    assert found["fits"] is False
    assert [r.getMessage() for r in caplog.records] == [found["advice"]]


def test_a_model_of_50_gb_is_never_there(tmp_path: Path) -> None:
    words = ["model.width=8192", "model.heads=64", "model.layers=16", "strategy=ddp"]
    job = planned_job(tmp_path, *words, "launch.nproc=8", "run.device=cpu")
    asked = {"config": job.config, "world_size": 8, "local_world_size": 8, "device": "cpu"}
    program = """
import resource, runpy, sys
runpy.run_module("paceline.rank.memory", run_name="__main__")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(asked) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    assert found["why"] is None
    assert found["parameters_gib"] == found["gradients_gib"] == pytest.approx(48, rel=0.01)
    assert found["optimizer_gib"] == pytest.approx(2 * found["parameters_gib"], rel=0.01)
    assert found["ddp_gib"] > 4 * found["parameters_gib"] > 5 * found["fsdp_gib"] / 2
    assert float(done.stderr.splitlines()[-1]) < 2  # GiB that the process held at most


class TestRoom:
    def test_ranks_share_the_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        whole = available_bytes(ONE)
        four = available_bytes(World(0, 0, 0, 4, torch.device("cpu")))
        assert 2 < whole / four < 8  # others use the machine too
        assert 0 < whole <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @pytest.mark.parametrize(
        ("names", "own"),
        [
            (("memory.max", "memory.current", "inactive_file"), "0::/job/step"),
            (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
                "4:memory:/job/step",
            ),
        ],
        ids=["v2", "v1"],
    )
    def test_a_cgroup_and_those_around_it(
        self, tmp_path: Path, names: tuple[str, str, str], own: str
    ) -> None:
        limit, used, dropped = names
        proc, root = tmp_path / "cgroup", tmp_path / "fs"
        proc.write_text(f"9:name=systemd:/elsewhere\n{own}\n")
        job = root / own.split(":")[1] / "job"
        (job / "step").mkdir(parents=True)
        (job / "step" / limit).write_text("max\n")
        (job / limit).write_text("1000\n")
        (job / used).write_text("700\n")
        (job / "memory.stat").write_text(f"anon 5\n{dropped} 200\n")
        assert list(left_to_cgroups(proc, root)) == [500]
        (job / used).write_text("1300\n")
        assert list(left_to_cgroups(proc, root)) == [0]
        assert list(left_to_cgroups(tmp_path / "none", root)) == []

    @pytest.mark.parametrize(
        ("strategy", "ranks", "local", "found"),
        [
            ({}, 8, 8, 8),
            ({"shard_ranks": 4}, 8, 8, 4),
            ({"shard_ranks": "auto"}, 8, 8, 4),
            ({"shard_ranks": "auto"}, 8, 2, 2),
            ({"shard_ranks": "auto"}, 1, 1, 1),
        ],
    )
    def test_over_how_many_is_sharded(
        self, strategy: Any, ranks: int, local: int, found: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
        assert shards(strategy, World(0, 0, 0, ranks, torch.device("cpu"))) == found
