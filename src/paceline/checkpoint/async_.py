"""checkpoint=async: training waits for a copy of the state; its writing overlaps the next steps.

One save is in flight at a time, with collectives in a process group of its own, for those of the
training go on meanwhile. Its failure is raised at the next step. (`async` alone is a word of the
language and no module can be imported by it.)
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

from paceline.checkpoint.cadence import Cadence
from paceline.checkpoint.cycle import Cycle
from paceline.checkpoint.reading import quiet
from paceline.checkpoint.together import gather, together, unwrap
from paceline.checkpoint.writer import HashedWriter
from paceline.types import STOPS, CheckpointError, Context, TrainState

STAGED = {
    "thread": StagingOptions(
        use_pinned_memory=False,
        use_shared_memory=False,
        use_async_staging=False,
        use_non_blocking_copy=False,
    ),
    "process": StagingOptions(
        use_pinned_memory=False,
        use_shared_memory=True,
        use_async_staging=False,
        use_non_blocking_copy=False,
    ),
    "pinned": StagingOptions(
        use_pinned_memory=True,
        use_shared_memory=False,
        use_async_staging=False,
        use_non_blocking_copy=True,
    ),
}


@dataclass(frozen=True)
class Async(Cadence):
    """`overlap`: a save that is due while another is in flight waits for it, or is skipped.
    `stager`: a thread writes, in turns with training for the interpreter's lock; or a process of
    its own, from shared memory; or a thread, from pinned memory, which copies faster from a GPU."""

    overlap: Literal["wait", "skip"]
    stager: Literal["thread", "process", "pinned"]

    def open(self, context: Context) -> InBackground:
        return InBackground(self, context)


class InBackground:
    def __init__(self, settings: Async, context: Context) -> None:
        self._settings, self._world = settings, context.world
        self._by_process = settings.stager == "process"
        self._alone_in_group = self._by_process and not dist.is_initialized()
        if self._alone_in_group:  # DCP's process joins a group of as many as this one
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._group: Any = group
        self._cycle = Cycle(settings, context, "dcp", group)
        self._stager = DefaultStager(STAGED[settings.stager])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None
        self._save: dict[str, Any] = {}
        self._skipped: list[int] = []

    def load(self, state: TrainState) -> int:
        return self._cycle.load(state)

    def save(self, state: TrainState, step: int, now: bool) -> bool:
        beside = self._running is not None  # at the step's beginning, whatever has become of it
        if self._running is not None and self._running.done():
            self._join()
        due = self._cycle.due(step, now)
        if due and not (self._skips() and not now and self._somewhere_busy()):
            self._begin(state, step)
            return True
        if due:
            self._skipped.append(step)
        return beside

    def finish(self) -> None:
        try:
            self._join()
        finally:
            self._thread.shutdown()
            self._stager.close()
            if self._alone_in_group:
                dist.destroy_process_group()

    def report(self) -> dict[str, Any]:
        return self._cycle.report() | {"skipped": self._skipped}

    def _begin(self, state: TrainState, step: int) -> None:
        began = time.perf_counter()
        self._join()
        waited_s = time.perf_counter() - began
        save = self._save = self._cycle.begin(step)
        state.fold()
        self._cycle.attempt(save, lambda: self._stage(state, save, began))
        save |= {"blocked_s": time.perf_counter() - began, "waited_s": waited_s}

    def _stage(self, state: TrainState, save: dict[str, Any], began: float) -> None:
        """When it returns, the state has been copied, and training may change it."""
        tree, place = self._cycle.stage(state, save["step"])
        written = self._write(tree, place)
        self._running = self._thread.submit(self._complete, save, written, began)

    def _write(self, tree: dict[str, Any], place: Path) -> Future[Any]:
        quiet()
        kind = AsyncCheckpointerType.PROCESS if self._by_process else AsyncCheckpointerType.THREAD
        with _deaf():
            written: Any = async_save(
                tree,
                storage_writer=HashedWriter(place),
                process_group=self._group,
                async_checkpointer_type=kind,
                async_stager=self._stager,
                no_dist=self._group is None,
            )
        return written  # type: ignore[no-any-return]

    def _complete(self, save: dict[str, Any], written: Future[Any], began: float) -> None:
        """In the thread of its own."""
        with self._cycle.resident:
            try:
                together(self._world, self._group, lambda: _result(written))
                self._cycle.complete(save, began)
            except CheckpointError:
                self._cycle.discard(save)
                raise

    def _join(self) -> None:
        """Wait for the save that is in flight; its failure is this step's."""
        running, self._running = self._running, None
        if running is not None:
            self._cycle.attempt(self._save, running.result)

    def _skips(self) -> bool:
        return self._settings.overlap == "skip"

    def _somewhere_busy(self) -> bool:
        """All ranks must skip, or none."""
        return any(gather(self._running is not None, self._world))


def _result(written: Future[Any]) -> None:
    try:
        written.result()
    except CheckpointException as error:
        unwrap(error)
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"the background save failed: {error}") from error


@contextmanager
def _deaf() -> Iterator[None]:
    """What is started inside ignores the signals that stop a job: it must write to the end."""
    heard = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, heard)
