"""The seeded stream: which samples a rank gets in step k is a function of (seed, k) alone.

Not of the world size, the workers, the strategy or a resume. The dataset is shuffled anew each
epoch; a global batch may straddle two epochs, so there is never a short batch.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset, default_collate

from paceline.data.order import Indices, SeededOrder, mix, scramble
from paceline.types import Batch, Context, DataError, at_least

Taken = tuple[Indices, int]
FOLD_EVERY = 1024
"""Index lists kept before they are folded into the digest: bounds memory at no cost a step."""

MOST_AUTO_WORKERS = 8
"""Each one is a process with batches of its own in memory: more must be asked for."""


class MapDataset(Protocol):
    """A map-style dataset. `__getitems__(indices)`, where defined, returns a whole batch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@dataclass(frozen=True)
class Loader:
    """How batches are fetched; never which ones, so it is no part of the work's identity.

    `num_workers`: of each rank; 0 fetches in the rank itself, between two steps. The other three
    settings are those of torch's DataLoader and hold for workers only.
    """

    num_workers: int | Literal["auto"]
    prefetch_factor: int
    persistent_workers: bool
    pin_memory: bool | Literal["auto"]

    def __post_init__(self) -> None:
        if self.num_workers != "auto":
            at_least(0, num_workers=self.num_workers)
        at_least(1, prefetch_factor=self.prefetch_factor)

    def workers(self, world_size: int) -> int:
        """Loader workers of one rank: the number asked for; auto: by the cores of this node.

        The ranks of this node are LOCAL_WORLD_SIZE, as launchers set it, else all of the world.
        """
        if self.num_workers != "auto":
            return self.num_workers
        able = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if able else os.cpu_count() or 1
        return auto_workers(cores, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))


def auto_workers(cores: int, ranks: int) -> int:
    """num_workers=auto: a rank's share of the node's usable cores less one for the rank itself,
    at least 1, at most MOST_AUTO_WORKERS."""
    return min(max(1, cores // ranks - 1), MOST_AUTO_WORKERS)


class MapStream:
    """A map-style dataset as an endless, seeded stream of this rank's micro-batches.

    `random_items`: items draw random numbers (augmentation); each is then seeded by
    (seed, epoch, index), so that it is the same in any worker and any world.
    `prepare`: called by the loop on each batch once it is on the device, in training and in
    evaluation; it draws no random number. None: the batch goes to the loss as it is.
    """

    sampling: Literal["seeded", "own"] = "seeded"

    def __init__(
        self,
        train: Any,
        held_out: Any,
        global_batch_size: int,
        loader: Loader,
        context: Context,
        unit: str,
        units_per_sample: int = 1,
        random_items: bool = False,
        prepare: Callable[[Batch], Batch] | None = None,
    ) -> None:
        world, run = context.world, context.run
        if len(train) == 0:
            raise DataError("the training dataset is empty")
        self.unit, self.units_per_sample = unit, units_per_sample
        self.loader, self.global_batch_size = loader, global_batch_size
        self.num_workers = loader.workers(world.world_size)
        self.queued_batches = self.num_workers * loader.prefetch_factor
        self.train, self.held_out_set, self.random_items = train, held_out, random_items
        self.samples, self.prepare = len(train), prepare
        self.world, self.seed, self.accumulation = world, run.seed, run.accumulation_steps
        self.micro_batch_size = global_batch_size // (world.world_size * self.accumulation)
        self.order = SeededOrder(len(train), global_batch_size, run.seed)
        self.workers_alive = 0
        self._handed: list[Taken] = []
        self._folded = 0
        self._digest = 0

    def count(self, batch: Batch) -> int:
        return first_dimension(batch) * self.units_per_sample

    def num_batches(self) -> int | None:
        return None

    def batches(self, first_step: int) -> Iterator[Batch]:
        """This rank's micro-batches from `first_step` on; see `SeededOrder`."""
        order = self._indices(first_step)
        if self.num_workers == 0:
            return map(self._fetch(self.train), order)
        return self._by_workers(order)

    def held_out(self, batches: int) -> Iterator[Batch]:
        """The first held-out samples in order: this rank's share of `batches` global batches."""
        fetch = self._fetch(self.held_out_set)
        size, world = self.micro_batch_size, self.world
        wanted = min(batches * self.global_batch_size, len(self.held_out_set))
        mine = np.arange(world.rank, wanted, world.world_size, dtype=np.int64)
        for start in range(0, len(mine), size):
            yield fetch((mine[start : start + size], 0))

    def digest(self, micro_batches: int) -> int | None:
        """Sum mod 2**64 of a hash of (step, sample) over the micro-batches really used."""
        self._fold(micro_batches - self._folded)
        return self._digest

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "samples": self.samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state != self.state_dict():
            raise DataError(
                f"the checkpoint was trained on {state}, this job has {self.state_dict()}: "
                "another seed or dataset can't go on with it"
            )

    def _fetch(self, dataset: Any) -> Fetch:
        return Fetch(dataset, self.seed, self.random_items)

    def _indices(self, first_step: int) -> Iterator[Taken]:
        size, step = self.micro_batch_size, first_step
        share = self.global_batch_size // self.world.world_size
        while True:
            start = step * self.global_batch_size + self.world.rank * share
            for micro in range(self.accumulation):
                first = start + micro * size
                indices = self.order.take(first, first + size)
                self._handed.append((indices, step))
                if len(self._handed) > 2 * FOLD_EVERY:
                    self._fold(FOLD_EVERY)
                yield indices, first
            step += 1

    def _by_workers(self, order: Iterator[Taken]) -> Iterator[Batch]:
        loader: DataLoader[Any] = DataLoader(
            cast("Dataset[Any]", self._fetch(self.train)),
            batch_size=None,
            collate_fn=_as_it_is,
            sampler=order,
            num_workers=self.num_workers,
            prefetch_factor=self.loader.prefetch_factor,
            persistent_workers=self.loader.persistent_workers,
            pin_memory=self._pin(),
            worker_init_fn=_one_thread,
        )
        batches = iter(loader)
        self.workers_alive = sum(w.is_alive() for w in getattr(batches, "_workers", []))
        return _relay(batches)

    def _pin(self) -> bool:
        on_gpu = self.world.device.type == "cuda"
        return on_gpu if self.loader.pin_memory == "auto" else bool(self.loader.pin_memory)

    def _fold(self, micro_batches: int) -> None:
        if micro_batches <= 0:
            return
        # the step in the high bits: the same samples in another step give another digest
        used = np.concatenate([i + (s << 40) for i, s in self._handed[:micro_batches]])
        with np.errstate(over="ignore"):
            total = int(scramble(used.view(np.uint64)).sum(dtype=np.uint64))
        self._digest = (self._digest + total) % 2**64
        self._folded += micro_batches
        del self._handed[:micro_batches]


class Fetch:
    """(indices, position of the first in the stream) -> batch; what loader workers hold."""

    def __init__(self, dataset: Any, seed: int, random_items: bool) -> None:
        self.dataset, self.seed, self.random_items = dataset, seed, random_items
        self.whole = getattr(dataset, "__getitems__", None)

    def __call__(self, taken: Taken) -> Batch:
        indices, first = taken
        if self.whole is not None:
            return self.whole(indices)
        if not self.random_items:
            return default_collate([self.dataset[int(i)] for i in indices])
        with _own_generators():
            epochs = (first + np.arange(len(indices))) // len(self.dataset)
            return default_collate(
                [self._seeded(int(i), int(e)) for i, e in zip(indices, epochs, strict=True)]
            )

    __getitem__ = __call__

    def _seeded(self, index: int, epoch: int) -> Any:
        seed = mix(self.seed, epoch, index)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPU's too
        random.seed(seed)
        np.random.seed(seed % 2**32)
        return self.dataset[index]


@contextmanager
def _own_generators() -> Iterator[None]:
    """What is seeded inside is put back: with no workers these are the training's generators."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def first_dimension(batch: Batch) -> int:
    """B of any pytree of tensors."""
    leaf = batch[0] if type(batch) in (tuple, list) else batch
    if not isinstance(leaf, torch.Tensor):
        leaf = tree_leaves(batch)[0]
    return int(leaf.shape[0])


def _relay(batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches of workers; a DataError raised in one says here what it said there, and the
    worker's traceback, which torch puts into the message, stands in its cause."""
    try:
        yield from batches
    except DataError as error:
        said = str(error).rpartition("DataError: ")[2].strip()
        # torch's frames hold the error and the loader in a cycle, and a loader that the garbage
        # collector finds waits 5 s for workers that no longer hear it
        raise DataError(said) from error.with_traceback(None)


def _as_it_is(batch: Batch) -> Batch:
    return batch


def _one_thread(worker: int) -> None:
    # several workers with a thread pool each would fight the ranks for cores
    torch.set_num_threads(1)
