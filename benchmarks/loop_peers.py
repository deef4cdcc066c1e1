"""The same job by paceline's peers; each is imported only where it is installed."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import torch.nn.functional as F
from loop_sides import CLIP, Work
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset


class TimedBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Ready batches; stamps the request of the first timed one, and of the one after the last.

    A peer's fit() has a start and an end of its own, which these stamps leave out.
    """

    AHEAD = 4  # some peers fetch a batch before they need it

    def __init__(self, batches: Iterator[tuple[Tensor, Tensor]], steps: int, untimed: int) -> None:
        self._batches, self._first, self._last = batches, untimed, untimed + steps
        self.total = untimed + steps + 1
        self.start = self.end = 0.0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(self.total + self.AHEAD):
            if number == self._first:
                self.start = time.perf_counter()
            elif number == self._last:
                self.end = time.perf_counter()
            yield next(self._batches)

    def loader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        return DataLoader(self, batch_size=None, collate_fn=lambda batch: batch)


class Peer:
    """A side that only has to train `timed.total` steps from `timed.loader()`."""

    package: str
    beside: tuple[str, ...] = ()

    def __init__(self, work: Work) -> None:
        self.model = work.model()
        self.optimizer = work.optimizer(self.model)
        self.scheduler = work.scheduler(self.optimizer)
        self._batches = work.batches()
        self.steps_done = 0

    def run(self, steps: int, untimed: int) -> float:
        timed = TimedBatches(self._batches, steps, untimed)
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
    beside = ("accelerate",)

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


PEERS: dict[str, type[Peer]] = {
    "Lightning Fabric": Fabric,
    "Accelerate": Accelerate,
    "Lightning": Lightning,
    "HF Trainer": Transformers,
}


def installed(peer: type[Peer]) -> str | None:
    """The version of its package; None where that, or what it needs beside it, isn't there."""
    there = all(importlib.util.find_spec(name) for name in (peer.package, *peer.beside))
    return version(peer.package) if there else None


def quiet() -> None:
    """Nothing looked up on a network, no advice on the terminal."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
