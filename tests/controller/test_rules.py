"""Every rule between groups: what breaks it, and what just doesn't."""

from __future__ import annotations

import copy
import os
from typing import Any, ClassVar

import pytest
import torch

from paceline.controller.rules import broken_rules, local_world_size, world_size

CONFIG: dict[str, Any] = {
    "run": {"steps": 40, "accumulation_steps": 1, "device": "cpu"},
    "launch": {
        "nproc": "auto",
        "nnodes": 1,
        "rdzv_endpoint": None,
        "node_rank": None,
        "max_restarts": 0,
        "gloo_interface": None,
        "nccl_interface": None,
        "nccl": {},
        "scheduler": "none",
        "slurm": {"gpus_per_node": None},
    },
    "measure": {"warmup_steps": 10},
    "data": {"global_batch_size": 16, "sequence_length": 64},
    "scaling": {"mode": "strong", "learning_rate": "none", "base_batch_size": None},
    "activation_checkpointing": {
        "_target_": "paceline.activation_checkpointing.off.NoCheckpointing"
    },
    "model": {"context_length": 64},
    "scheduler": {"warmup_steps": 40},
    "profiler": {},
    "compile": {},
    "optimizer": {},
    "precision": {},
    "comm_hook": {},
    "checkpoint": {},
    "strategy": {},
}
CHOICES = {"strategy": "ddp", "compile": "off", "comm_hook": "none"}
SCHEDULE = {"wait": 8, "warmup": 2, "active": 10, "repeat": 2, "ranks": [0, 1, "slowest"]}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = [name for name in os.environ if name.startswith("SLURM_")]
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "CXX", *slurm):
        monkeypatch.delenv(name, raising=False)


def devices(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


def broken(
    changes: dict[str, Any] | None = None, wrong: tuple[str, ...] = (), **choices: str
) -> list[str]:
    """The rules that are broken by these changes of a config that breaks none."""
    config = copy.deepcopy(CONFIG)
    for key, value in (changes or {}).items():
        group, _, name = key.partition(".")
        if name:
            config[group][name] = value
        else:
            config[group] = value
    return broken_rules(config, {**CHOICES, **choices}, wrong=wrong)


def test_none_is_broken() -> None:
    assert broken() == []
    assert broken({"data": {}, "model": {}, "scheduler": {}, "measure": {}, "profiler": {}}) == []


BROKEN = {
    "single": (
        {"launch.nproc": 2},
        {"strategy": "single"},
        "strategy=single: it runs one process, launch.nproc=2 asks for 2; use strategy=ddp, or "
        "launch.nproc=1",
    ),
    "batch": (
        {"data.global_batch_size": 15},
        {},
        "data.global_batch_size=15: 2 ranks x run.accumulation_steps=1 can't share it equally; use "
        "a multiple of 2, as data.global_batch_size=16",
    ),
    "micro-batches": (
        {"run.accumulation_steps": 3},
        {},
        "data.global_batch_size=16: 2 ranks x run.accumulation_steps=3 can't share it equally; use "
        "a multiple of 6, as data.global_batch_size=18",
    ),
    "too small a batch": (
        {"data.global_batch_size": 1},
        {},
        "data.global_batch_size=1: 2 ranks x run.accumulation_steps=1 can't share it equally; use "
        "a multiple of 2, as data.global_batch_size=2",
    ),
    "measured": (
        {"measure.warmup_steps": 40},
        {},
        "measure.warmup_steps=40: this leaves nothing to measure in run.steps=40; raise run.steps "
        "or lower measure.warmup_steps",
    ),
    "warm-up": (
        {"scheduler.warmup_steps": 41},
        {},
        "scheduler.warmup_steps=41: longer than the training, run.steps=40; raise run.steps or "
        "lower scheduler.warmup_steps",
    ),
    "profiler": (
        {"profiler": SCHEDULE | {"active": 11}},
        {},
        "profiler.wait=8: (wait + warmup=2 + active=11) x repeat=2 needs 42 steps, run.steps=40 "
        "has fewer; lower profiler.wait or raise run.steps",
    ),
    "profiled": (
        {"profiler": SCHEDULE | {"ranks": [0, 2]}},
        {},
        "profiler.ranks=[0,2]: the job has ranks 0 to 1; give some of those",
    ),
    "recorded while it warms up": (
        {"profiler": SCHEDULE | {"wait": 7}},
        {},
        "profiler.wait=7: with warmup=2 steps are recorded from step 9 on, which "
        "measure.warmup_steps=10 takes for unsettled; set profiler.wait=8 or more",
    ),
    "kernels without a device": (
        {"profiler": SCHEDULE | {"activities": ["cpu", "cuda"]}},
        {},
        "profiler.activities=[cpu,cuda]: there would be no CUDA device; use "
        "profiler.activities=auto",
    ),
    "a device's history without one": (
        {"profiler": {"wait": 20, "max_entries": 1}},
        {"profiler": "memory_snapshot"},
        "profiler=memory_snapshot: it is the history of the allocator on a CUDA device, there "
        "would be none; on a CPU use profiler=schedule profiler.profile_memory=true",
    ),
    "tf32": (
        {"precision.float32_matmul": "tf32"},
        {"precision": "tf32"},
        "precision=tf32: TF32 needs an Ampere or newer CUDA device; use precision=fp32 or bf16",
    ),
    "tf32 by its key": (
        {"precision.float32_matmul": "tf32"},
        {"precision": "fp32"},
        "precision.float32_matmul=tf32: TF32 needs an Ampere or newer CUDA device; use "
        "precision=fp32 or bf16",
    ),
    "context": (
        {"data.sequence_length": 65},
        {},
        "data.sequence_length=65: longer than model.context_length=64; raise the second or lower "
        "the first",
    ),
}


@pytest.mark.parametrize(("changes", "choices", "said"), BROKEN.values(), ids=BROKEN)
def test_it_is_broken(changes: dict[str, Any], choices: dict[str, str], said: str) -> None:
    assert broken(changes, **choices) == [said]


HELD = {
    "fp32": ({"precision.float32_matmul": "ieee"}, {"precision": "fp32"}),
    "single": ({"launch.nproc": 1}, {"strategy": "single"}),
    "batch": ({"data.global_batch_size": 2}, {}),
    "micro-batches": ({"run.accumulation_steps": 8}, {}),
    "no batch": ({"data": {}}, {}),
    "measured": ({"measure.warmup_steps": 39}, {}),
    "profiler": ({"profiler": SCHEDULE}, {}),
    "context": ({"data.sequence_length": 1}, {}),
}


@pytest.mark.parametrize(("changes", "choices"), HELD.values(), ids=HELD)
def test_it_just_holds(changes: dict[str, Any], choices: dict[str, str]) -> None:
    assert broken(changes, **choices) == []


class TestDevices:
    def test_cuda_without_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        devices(monkeypatch, 0)
        said = "run.device=cuda: torch sees no CUDA device; use run.device=cpu or auto"
        assert broken({"run.device": "cuda"}) == [said]
        assert broken({"run.device": "auto"}) == []

    def test_more_ranks_than_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        devices(monkeypatch, 2)
        said = (
            "launch.nproc=4: 4 ranks on 2 CUDA devices; lower launch.nproc, or use run.device=cpu"
        )
        for device in ("cuda", "auto"):
            assert broken({"run.device": device, "launch.nproc": 4}) == [said]
            assert broken({"run.device": device, "launch.nproc": 2}) == []
        assert broken({"run.device": "cpu", "launch.nproc": 4}) == []

    def test_a_launcher_counts_the_ranks_of_this_machine(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        devices(monkeypatch, 2)
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        assert broken({"run.device": "cuda"}) == []


class TestALauncherAround:
    def test_it_is_adopted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert broken() == []
        assert broken({"launch.nproc": 2}) == []

    def test_it_started_another_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        (problem,) = broken({"launch.nproc": 4})
        assert problem.startswith("launch.nproc=4: the launcher around paceline started WORLD_SIZE")
        assert problem.endswith("leave launch.nproc=auto, or start paceline without it")

    def test_it_has_several_nodes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        assert broken() == []
        assert broken({"launch.nnodes": 2, "launch.nproc": 2}) == []
        (problem,) = broken({"launch.nnodes": 4})
        assert problem.startswith("launch.nnodes=4: ") and "LOCAL_WORLD_SIZE=2" in problem
        (problem,) = broken({"launch.nnodes": 2, "launch.nproc": 4})
        assert "times launch.nnodes=2 is 8 ranks" in problem and "WORLD_SIZE=4" in problem

    def test_its_restarts_are_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        (problem,) = broken({"launch.max_restarts": 1})
        assert problem.startswith("launch.max_restarts=1: ") and "--max-restarts" in problem

    def test_single_is_one_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "2")
        (problem,) = broken(strategy="single")
        assert problem.startswith("strategy=single: ")


class TestTheCompiler:
    def test_there_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        assert broken() == []
        (problem,) = broken({"compile.backend": "inductor"}, compile="inductor")
        assert problem.startswith("compile=inductor: it needs a C++ compiler for CPU kernels, g++ ")
        monkeypatch.setenv("CXX", "no-such-compiler")
        (problem,) = broken({"compile.backend": "inductor"}, compile="regional")
        assert "no-such-compiler is not on PATH" in problem
        assert broken({"compile.backend": "aot_eager"}, compile="inductor") == []

    def test_a_gpu_needs_none_of_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        devices(monkeypatch, 2)
        inductor = {"compile.backend": "inductor"}
        assert broken({"run.device": "cuda", **inductor}, compile="inductor") == []
        assert len(broken({"run.device": "cpu", **inductor}, compile="inductor")) == 1

    def test_there_is_one(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
        (tmp_path / "my-cxx").touch(mode=0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("CXX", "my-cxx")
        assert broken({"compile.backend": "inductor"}, compile="inductor") == []


class TestCudaGraphs:
    @pytest.mark.parametrize(
        ("option", "settings"),
        [
            ("reduce_overhead", {"backend": "inductor", "mode": "reduce-overhead"}),
            ("cudagraphs", {"backend": "cudagraphs", "mode": None}),
        ],
    )
    def test_a_cpu_has_none(
        self, option: str, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (problem,) = broken({"compile": settings}, compile=option)
        assert problem.startswith(f"compile={option}: CUDA graphs need a CUDA device")
        assert problem.endswith("use compile=inductor")
        devices(monkeypatch, 2)
        assert broken({"compile": settings, "run.device": "cuda"}, compile=option) == []


def test_pinned_memory_is_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = broken({"checkpoint.stager": "pinned"})
    assert problem.endswith("use checkpoint.stager=thread")
    assert broken({"checkpoint.stager": "process"}) == []
    devices(monkeypatch, 1)
    assert broken({"checkpoint.stager": "pinned", "run.device": "cuda"}) == []


class TestACompiledStep:
    COMPILED: ClassVar = {"compile.optimizer_step": True}

    def test_there_is_nothing_to_compile_in_a_fused_one(self) -> None:
        (problem,) = broken({**self.COMPILED, "optimizer.fused": True})
        assert "optimizer.fused=true is one kernel already" in problem
        assert broken(self.COMPILED) == []
        assert broken({"optimizer.fused": True}) == []

    def test_foreach_takes_no_learning_rate_in_a_tensor(self) -> None:
        (problem,) = broken({**self.COMPILED, "optimizer.foreach": True})
        assert problem.endswith("use optimizer.foreach=null")
        assert broken({**self.COMPILED, "optimizer": {"foreach": True, "capturable": True}}) == []


class TestWorldSize:
    @pytest.mark.parametrize(
        ("strategy", "nproc", "found", "size"),
        [
            ("single", "auto", 4, 1),
            ("ddp", "auto", 0, 2),
            ("ddp", "auto", 4, 4),
            ("ddp", 3, 4, 3),
            ("single", 2, 0, 2),
        ],
    )
    def test_what_it_comes_from(
        self, monkeypatch: pytest.MonkeyPatch, strategy: str, nproc: Any, found: int, size: int
    ) -> None:
        devices(monkeypatch, found)
        config = {
            "launch": {"nproc": nproc, "nnodes": 1, "scheduler": "none"},
            "run": {"device": "auto"},
        }
        assert world_size(config, {"strategy": strategy}) == size

    def test_a_cpu_has_two(self, monkeypatch: pytest.MonkeyPatch) -> None:
        devices(monkeypatch, 8)
        config = {
            "launch": {"nproc": "auto", "nnodes": 1, "scheduler": "none"},
            "run": {"device": "cpu"},
        }
        assert world_size(config, {"strategy": "ddp"}) == 2

    @pytest.mark.parametrize(("nproc", "size"), [("auto", 6), (4, 12)])
    def test_several_nodes(self, nproc: Any, size: int) -> None:
        config = {
            "launch": {"nproc": nproc, "nnodes": 3, "scheduler": "none"},
            "run": {"device": "cpu"},
        }
        assert world_size(config, {"strategy": "ddp"}) == size
        assert local_world_size(config, size) == size // 3

    def test_a_launcher_has_the_say(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORLD_SIZE", "6")
        config = {
            "launch": {"nproc": "auto", "nnodes": 1, "scheduler": "none"},
            "run": {"device": "auto"},
        }
        assert world_size(config, {"strategy": "ddp"}) == 6


class TestWhatCannotBeJudged:
    """A rule that reads a wrong key says nothing: it would only repeat or mislead."""

    WORST = {  # noqa: RUF012
        "launch.nproc": 3,
        "measure.warmup_steps": 99,
        "data.sequence_length": 99,
        "scheduler.warmup_steps": 99,
    }

    def keys(self, *wrong: str) -> list[str]:
        return [p.partition("=")[0] for p in broken(self.WORST, wrong, strategy="single")]

    def test_all_can(self) -> None:
        assert self.keys() == [
            "strategy",
            "data.global_batch_size",
            "measure.warmup_steps",
            "scheduler.warmup_steps",
            "data.sequence_length",
        ]

    def test_an_unknown_number_of_ranks(self) -> None:
        for wrong in ("launch", "launch.nproc", "strategy", "strategy.mode", "run.device"):
            assert self.keys(wrong) == [
                "measure.warmup_steps",
                "scheduler.warmup_steps",
                "data.sequence_length",
            ]

    def test_a_wrong_key(self) -> None:
        assert "measure.warmup_steps" not in self.keys("run.steps")
        assert "scheduler.warmup_steps" not in self.keys("scheduler")
        assert "data.sequence_length" not in self.keys("model.context_length")
        assert self.keys("data.loader.num_workers", "run.seed") == self.keys()

    def test_nodes_that_are_not_there(self) -> None:
        missing = (
            "run",
            "data",
            "model",
            "profiler",
            "launch",
            "compile",
            "precision",
            "comm_hook",
            "strategy",
        )
        missing += ("scaling", "activation_checkpointing")
        assert broken_rules({}, {}, wrong=missing) == []
