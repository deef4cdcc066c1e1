"""checkpoint=sync: rank 0 writes the whole state with torch.save while all ranks wait.

A directory `step_{08d}` appears by one rename, after its file is on the disk: what has that name
is whole.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from paceline.types import CheckpointError, Context, TrainState, World, at_least


@dataclass(frozen=True)
class Sync:
    every_steps: int
    keep_last: int
    resume: Literal["auto", "required", "off"]

    def __post_init__(self) -> None:
        at_least(1, every_steps=self.every_steps, keep_last=self.keep_last)

    def open(self, context: Context) -> SyncCheckpoint:
        return SyncCheckpoint(self, context.directory / "checkpoint", context.world)


class SyncCheckpoint:
    def __init__(self, settings: Sync, directory: Path, world: World) -> None:
        self._settings, self._directory, self._world = settings, directory, world
        self._saves: list[dict[str, Any]] = []
        self._resumed_from: int | None = None

    def load(self, state: TrainState) -> int:
        committed = _committed(self._directory)
        if self._settings.resume == "off" or not committed:
            if self._settings.resume == "required":
                raise CheckpointError(
                    f"checkpoint.resume=required, but {self._directory} holds no committed "
                    "checkpoint; use checkpoint.resume=auto to start fresh"
                )
            print("no checkpoint: fresh start", flush=True)
            return 0
        path = committed[-1] / "state.pt"
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if len(saved["rng"]) != self._world.world_size:
            raise CheckpointError(
                f"{path} was saved by {len(saved['rng'])} ranks, this job has "
                f"{self._world.world_size}"
            )
        state.model.load_state_dict(saved["model"])
        state.optimizer.load_state_dict(saved["optimizer"])
        state.scheduler.load_state_dict(saved["scheduler"])
        state.precision.load_state_dict(saved["precision"])
        state.data.load_state_dict(saved["data"])
        state.history.update(saved["history"])
        state.step = self._resumed_from = saved["step"]
        _set_rng(saved["rng"][self._world.rank])
        print(f"resumed from step {state.step}", flush=True)
        return state.step

    def save(self, state: TrainState, step: int, now: bool) -> bool:
        if not (now or step % self._settings.every_steps == 0):
            return False
        if self._saves and self._saves[-1]["step"] == step:
            return False
        start = time.perf_counter()
        state.fold()
        rng = _gather(_get_rng(), self._world)
        written = 0
        if self._world.rank == 0:
            written = self._write(state, step, rng)
        if not self._world.alone:
            dist.barrier()
        seconds = time.perf_counter() - start
        self._saves.append(
            {
                "step": step,
                "blocked_s": seconds,
                "durable_s": seconds,
                "bytes": written,
                "state": "committed",
            }
        )
        return True

    def finish(self) -> None:
        return None

    def report(self) -> dict[str, Any]:
        return {"saves": self._saves, "resumed_from": self._resumed_from}

    def _write(self, state: TrainState, step: int, rng: list[dict[str, Any]]) -> int:
        whole = {
            "step": step,
            "model": state.model.state_dict(),
            "optimizer": state.optimizer.state_dict(),
            "scheduler": state.scheduler.state_dict(),
            "precision": state.precision.state_dict(),
            "data": state.data.state_dict(),
            "history": state.history,
            "rng": rng,
        }
        final = self._directory / f"step_{step:08d}"
        staging = self._directory / f".staging_{step:08d}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        with (staging / "state.pt").open("wb") as file:
            torch.save(whole, file)
            file.flush()
            os.fsync(file.fileno())
            written = file.tell()
        if final.exists():  # left by a run that was resumed from an earlier step
            shutil.rmtree(final)
        staging.rename(final)
        _sync_directory(self._directory)
        for old in _committed(self._directory)[: -self._settings.keep_last]:
            shutil.rmtree(old)
        return written


def _committed(directory: Path) -> list[Path]:
    return sorted(directory.glob("step_*"))


def _sync_directory(directory: Path) -> None:
    # a rename is durable only once the directory that holds the name is
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _gather(mine: dict[str, Any], world: World) -> list[dict[str, Any]]:
    if world.alone:
        return [mine]
    everyone: list[Any] = [None] * world.world_size
    dist.all_gather_object(everyone, mine)
    return everyone


def _get_rng() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": [version, list(words), gauss],
        "numpy": [name, [int(k) for k in keys], int(position), int(has_gauss), float(cached)],
    }


def _set_rng(rng: dict[str, Any]) -> None:
    torch.set_rng_state(rng["torch"])
    if rng["cuda"] is not None:
        torch.cuda.set_rng_state(rng["cuda"])
    version, words, gauss = rng["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = rng["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
