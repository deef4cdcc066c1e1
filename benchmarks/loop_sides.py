"""The job of `loop_overhead.py`, trained by a raw loop and by paceline.

Each side has `run(steps, untimed) -> seconds` of the steps after the untimed ones, and `model`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from torch import Tensor, nn

from paceline import config as checker
from paceline.__main__ import config_dir
from paceline.controller.plan import make_job
from paceline.rank.build import build
from paceline.rank.train import train
from paceline.rank.world import StopFlag
from paceline.types import World

CLIP = 1.0


@dataclass(frozen=True)
class Shape:
    """The size of the job: an MLP inputs - hidden - classes."""

    inputs: int
    hidden: tuple[int, ...]
    classes: int
    batch: int
    samples: int = 8192

    def overrides(self) -> list[str]:
        return [
            "model=mlp",
            f"model.inputs={self.inputs}",
            f"model.hidden=[{','.join(map(str, self.hidden))}]",
            f"model.outputs={self.classes}",
            "data=synthetic",
            f"data.shape=[{self.inputs}]",
            f"data.classes={self.classes}",
            f"data.samples={self.samples}",
            f"data.global_batch_size={self.batch}",
            "optimizer=adamw",
            "optimizer.fused=true",
            "scheduler=constant",
            "precision=fp32",
            "compile=off",
            "strategy=single",
            "checkpoint=off",
            "profiler=off",
            f"run.clip_grad_norm={CLIP}",
            "run.device=cpu",
            "run.steps=1000000000",
        ]


class Work:
    """What every side trains: paceline's own composed config, and the tensors it draws from."""

    def __init__(self, shape: Shape) -> None:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            root = compose("config", overrides=shape.overrides(), return_hydra_config=True)
        self.config = make_job(root, Path("unused")).config
        self.batch = shape.batch
        self.paceline = Paceline(self.config)
        self.inputs, self.targets = self.paceline.parts.state.data.train.tensors

    def model(self) -> nn.Module:
        torch.manual_seed(self.config["run"]["seed"])
        built: nn.Module = checker.build(self.config["model"])
        return built.train()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = checker.build(
            self.config["optimizer"], params=list(model.parameters())
        )
        return made

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        return checker.build(self.config["scheduler"], optimizer=optimizer)

    def indices(self) -> Iterator[Tensor]:
        """Endless: a permutation an epoch, a slice of it a batch."""
        while True:
            order = torch.randperm(len(self.inputs))
            for start in range(0, len(order) - self.batch + 1, self.batch):
                yield order[start : start + self.batch]

    def batches(self, select: bool = True) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, targets = self.inputs, self.targets
        if select:
            return ((inputs.index_select(0, i), targets.index_select(0, i)) for i in self.indices())
        return ((inputs[i], targets[i]) for i in self.indices())

    def loss(self, model: nn.Module) -> float:
        """Mean over all samples."""
        with torch.no_grad():
            return float(F.cross_entropy(model(self.inputs), self.targets))


class Paceline:
    """The product's path: build and train as a rank of a job does, step ranges in a row."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._held = ExitStack()
        directory = Path(self._held.enter_context(tempfile.TemporaryDirectory()))
        (directory / "log").mkdir()
        world = World(0, 0, 0, 1, torch.device("cpu"))
        self.parts, _ = build(config, directory, world, StopFlag(world))
        self.parts.batches = iter(self.parts.state.data.batches(0))
        self.model, self.steps_done = self.parts.state.model, 0

    def run(self, steps: int, untimed: int) -> float:
        self._go_on(untimed)
        start = time.perf_counter()
        self._go_on(steps)
        return time.perf_counter() - start

    def check(self, steps: int) -> None:
        """That every step was trained, counted and entered in the ledger."""
        parts = self.parts
        assert parts.state.step == steps
        assert parts.micro_batches_used == steps
        assert len(parts.ledger.steps().step) == steps
        parts.curves.fold(parts.world)
        assert len(parts.state.history["loss"]) == steps

    def close(self) -> None:
        self._held.close()

    def _go_on(self, steps: int) -> None:
        self.steps_done = train(self.parts, self.steps_done, self.steps_done + steps)


class Raw:
    """The loop one writes by hand: `x[index]`, or with `select` the faster `index_select`."""

    def __init__(self, work: Work, select: bool = False) -> None:
        self.model = work.model()
        self._parameters = list(self.model.parameters())
        self._optimizer = work.optimizer(self.model)
        self._scheduler = work.scheduler(self._optimizer)
        self._batches = work.batches(select)
        self.steps_done = 0

    def run(self, steps: int, untimed: int) -> float:
        self._go_on(untimed)
        start = time.perf_counter()
        self._go_on(steps)
        return time.perf_counter() - start

    def _go_on(self, steps: int) -> None:
        model, optimizer, scheduler = self.model, self._optimizer, self._scheduler
        parameters, batches = self._parameters, self._batches
        for _ in range(steps):
            inputs, targets = next(batches)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            scheduler.step()
        self.steps_done += steps
