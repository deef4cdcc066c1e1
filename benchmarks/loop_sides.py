"""The sides of `loop_overhead.py`: one job, trained by a raw loop, by paceline and by its peers.

Each side has `run(steps) -> seconds` of those steps, after some that aren't timed, and `model`.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from paceline import config as checker
from paceline.__main__ import config_dir
from paceline.controller.plan import plain
from paceline.rank.build import build
from paceline.rank.train import train
from paceline.rank.world import StopFlag
from paceline.types import World

UNTIMED = 20
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
            "+optimizer.fused=true",
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
        self.config: dict[str, Any] = plain(root)
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

    def run(self, steps: int) -> float:
        self._go_on(UNTIMED)
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

    def run(self, steps: int) -> float:
        self._go_on(UNTIMED)
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


class TimedBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Ready batches; stamps the request of the first timed one, and of the one after the last.

    A peer's fit() has a start and an end of its own, which these stamps leave out.
    """

    AHEAD = 4  # some peers fetch a batch before they need it

    def __init__(self, batches: Iterator[tuple[Tensor, Tensor]], steps: int) -> None:
        self._batches, self._steps = batches, steps
        self.total = UNTIMED + steps + 1
        self.start = self.end = 0.0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(self.total + self.AHEAD):
            if number == UNTIMED:
                self.start = time.perf_counter()
            elif number == UNTIMED + self._steps:
                self.end = time.perf_counter()
            yield next(self._batches)

    def loader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        return DataLoader(self, batch_size=None, collate_fn=lambda batch: batch)


class Peer:
    """A side that only has to train `timed.total` steps from `timed.loader()`."""

    package: str

    def __init__(self, work: Work) -> None:
        self.model = work.model()
        self.optimizer = work.optimizer(self.model)
        self.scheduler = work.scheduler(self.optimizer)
        self._batches = work.batches()
        self.steps_done = 0

    def run(self, steps: int) -> float:
        timed = TimedBatches(self._batches, steps)
        self.fit(timed)
        self.steps_done += timed.total
        return timed.end - timed.start

    def fit(self, timed: TimedBatches) -> None:
        raise NotImplementedError


class Fabric(Peer):
    package = "lightning"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        from lightning.fabric import Fabric as LightningFabric

        self._fabric = LightningFabric(accelerator="cpu", devices=1)
        self._wrapped = self._fabric.setup(self.model, self.optimizer)

    def fit(self, timed: TimedBatches) -> None:
        fabric, (model, optimizer) = self._fabric, self._wrapped
        loader = fabric.setup_dataloaders(timed.loader())
        for inputs, targets in itertools.islice(loader, timed.total):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=CLIP)
            optimizer.step()
            self.scheduler.step()


class Accelerate(Peer):
    package = "accelerate"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        from accelerate import Accelerator

        self._accelerator = Accelerator(cpu=True)
        self._wrapped = self._accelerator.prepare(self.model, self.optimizer, self.scheduler)

    def fit(self, timed: TimedBatches) -> None:
        accelerator, (model, optimizer, scheduler) = self._accelerator, self._wrapped
        parameters = list(model.parameters())
        loader = accelerator.prepare_data_loader(timed.loader())
        for inputs, targets in itertools.islice(loader, timed.total):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            scheduler.step()


class Lightning(Peer):
    """`barebones`: Lightning's own switch for measuring its overhead; automatic optimisation."""

    package = "lightning"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        import lightning

        peer = self

        class Module(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = peer.model

            def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
                inputs, targets = batch
                return F.cross_entropy(self.net(inputs), targets)

            def configure_optimizers(self) -> Any:
                schedule = {"scheduler": peer.scheduler, "interval": "step"}
                return {"optimizer": peer.optimizer, "lr_scheduler": schedule}

        self._lightning, self._module = lightning, Module()

    def fit(self, timed: TimedBatches) -> None:
        trainer = self._lightning.Trainer(
            accelerator="cpu",
            devices=1,
            barebones=True,
            max_epochs=-1,
            max_steps=timed.total,
            gradient_clip_val=CLIP,
        )
        trainer.fit(self._module, timed.loader())


class Transformers(Peer):
    """HF Trainer, with its own ways to the model and the loader, and nothing logged or saved."""

    package = "transformers"

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        import transformers

        class Trainer(transformers.Trainer):
            timed: TimedBatches

            def get_train_dataloader(self) -> Any:
                return self.accelerator.prepare_data_loader(self.timed.loader())

            def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kw: Any) -> Tensor:
                return F.cross_entropy(model(inputs["inputs"]), inputs["labels"])

        self._transformers, self._trainer = transformers, Trainer
        self._directory = tempfile.TemporaryDirectory()

    def fit(self, timed: TimedBatches) -> None:
        arguments = self._transformers.TrainingArguments(
            output_dir=self._directory.name,
            max_steps=timed.total,
            max_grad_norm=CLIP,
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            logging_nan_inf_filter=False,
        )
        trainer = self._trainer(
            model=self.model, args=arguments, optimizers=(self.optimizer, self.scheduler)
        )
        trainer.remove_callback(self._transformers.PrinterCallback)
        named = ({"inputs": x, "labels": y} for x, y in self._batches)
        timed._batches = named  # type: ignore[assignment]
        trainer.timed = timed
        trainer.train()


PEERS: dict[str, Callable[[Work], Peer]] = {
    "Lightning Fabric": Fabric,
    "Accelerate": Accelerate,
    "Lightning": Lightning,
    "HF Trainer": Transformers,
}


def installed(package: str) -> str | None:
    """Its version, or None."""
    return version(package) if importlib.util.find_spec(package) else None


def quiet() -> None:
    """Nothing looked up on a network, no advice on the terminal."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
