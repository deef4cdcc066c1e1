"""checkpoint=sync: rank 0 writes the whole state with torch.save while all ranks wait.

A directory `step_{08d}` appears by one rename, after its file is on the disk: what has that name
is whole. Shards are gathered into whole tensors first, so that single, ddp and fsdp read each
other's.
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
import xxhash
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map

from paceline.types import CheckpointError, Context, TrainState, World, at_least

WAY_OUT = "remove that directory to go on from the checkpoint before it, or from the start"


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
        self._agree(committed[-1].name if committed else "none")
        if self._settings.resume == "off" or not committed:
            if self._settings.resume == "required":
                raise CheckpointError(
                    f"checkpoint.resume=required, but {self._directory} holds no committed "
                    "checkpoint; use checkpoint.resume=auto to start fresh"
                )
            print("no checkpoint: fresh start", flush=True)
            return 0
        path = committed[-1] / "state.pt"
        saved = _read(path)
        ranks = saved["ranks"]
        if len(ranks) != self._world.world_size:
            raise CheckpointError(
                f"{path} was saved by {len(ranks)} ranks, this job has {self._world.world_size}"
            )
        mine = ranks[self._world.rank]
        set_model_state_dict(
            state.model, saved["model"], options=StateDictOptions(full_state_dict=True)
        )
        state.optimizer.load_state_dict(_shared_out(saved["optimizer"], state.optimizer))
        state.comm_hook.load_state_dict(mine["comm_hook"])
        state.scheduler.load_state_dict(saved["scheduler"])
        state.precision.load_state_dict(saved["precision"])
        state.data.load_state_dict(saved["data"])
        state.history.update(saved["history"])
        state.step = self._resumed_from = saved["step"]
        _set_rng(mine["rng"])
        print(f"resumed from step {state.step}", flush=True)
        return state.step

    def save(self, state: TrainState, step: int, now: bool) -> bool:
        if not (now or step % self._settings.every_steps == 0):
            return False
        if self._saves and self._saves[-1]["step"] == step:
            return False
        start = time.perf_counter()
        state.fold()
        own = {"rng": _get_rng(), "comm_hook": state.comm_hook.state_dict()}
        whole = {
            "step": step,
            "model": _whole(state.model.state_dict()),
            "optimizer": _whole(state.optimizer.state_dict()),
            "scheduler": state.scheduler.state_dict(),
            "precision": state.precision.state_dict(),
            "data": state.data.state_dict(),
            "history": state.history,
            "ranks": _gather(own, self._world),
        }
        whole["digests"] = _digests(whole)
        written = 0
        if self._world.rank == 0:
            written = self._write(whole, step)
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

    def _agree(self, newest: str) -> None:
        """A node that doesn't see the checkpoint would start afresh while the others go on."""
        seen = _gather(newest, self._world)
        if len(set(seen)) > 1:
            listed = ", ".join(f"rank {rank}: {name}" for rank, name in enumerate(seen))
            raise CheckpointError(
                f"the ranks see different newest checkpoints in {self._directory} ({listed}); put "
                "the job's directory on a file system that all nodes share"
            )

    def report(self) -> dict[str, Any]:
        return {"saves": self._saves, "resumed_from": self._resumed_from}

    def _write(self, whole: dict[str, Any], step: int) -> int:
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


def _read(path: Path) -> dict[str, Any]:
    """What was saved there. torch reads a file with other bytes than it wrote without a word, so
    every tensor is held to the digest that was saved beside it."""
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        digests = saved.pop("digests")
    except Exception as error:
        raise CheckpointError(f"{path} can't be read ({error}); {WAY_OUT}") from error
    found = _digests(saved)
    damaged = [name for name in digests if found.get(name) != digests[name]]
    if damaged:
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        raise CheckpointError(
            f"{path} is damaged: {', '.join(damaged[:3])}{more} are not what was saved; {WAY_OUT}"
        )
    return saved


def _digests(tree: Any) -> dict[str, int]:
    """Place of each tensor in a tree -> 64 bits of its bytes."""
    leaves, _ = tree_flatten_with_path(tree)
    return {
        keystr(place): _digest(leaf)
        for place, leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.numel()
    }


def _digest(tensor: torch.Tensor) -> int:
    raw: Any = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return xxhash.xxh3_64_intdigest(raw)


def _whole(tree: Any) -> Any:
    """Every shard as the whole tensor, on the host: a collective for each."""
    return tree_map(lambda t: t.full_tensor().cpu() if isinstance(t, DTensor) else t, tree)


def _shared_out(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state of whole tensors, sharded as the parameters that it belongs to."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def shard(value: Any, like: Any) -> Any:
        if isinstance(like, DTensor) and isinstance(value, torch.Tensor) and value.dim():
            whole = value.to(like.device)
            # every rank has read the same: nothing has to travel
            return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
        return value

    state = {
        number: {name: shard(value, parameters[number]) for name, value in values.items()}
        for number, values in saved["state"].items()
    }
    return saved | {"state": state}


def _committed(directory: Path) -> list[Path]:
    return sorted(directory.glob("step_*"))


def _sync_directory(directory: Path) -> None:
    # a rename is durable only once the directory that holds the name is
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _gather(mine: Any, world: World) -> list[Any]:
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
