"""What a checkpoint's load has left in this job, told apart from the code that loaded it.

The same paths as in a checkpoint (checkpoint/state.py), read from the live parts themselves.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.rank.world import gather
from paceline.record.digests import digests
from paceline.record.schema import write_json
from paceline.types import TrainState, World

FILE = "digests.json"


def write_digests(state: TrainState, world: World, directory: Path) -> None:
    """Rank 0 writes path -> digest of the state as it is now: a collective. Sharded tensors are
    gathered one at a time."""
    found = digests(_shared(state))
    everyone = gather(digests(_own(state)), world)
    if world.rank:
        return
    for rank, mine in enumerate(everyone):
        found |= {f"ranks.{rank}.{path}": digest for path, digest in mine.items()}
    write_json(directory / FILE, found)


def _shared(state: TrainState) -> dict[str, Any]:
    """What all ranks have alike, or in shards."""
    data: Any = state.data
    batch = getattr(data, "global_batch_size", None) if data.sampling == "seeded" else None
    history = {
        name: torch.tensor(values, dtype=torch.float64)
        for name, values in state.history.items()
        if values
    }
    return {
        "model": state.model.state_dict(),
        "optimizer": _optimizer(state),
        "scheduler": _numbers(state.scheduler.state_dict()),
        "precision": _numbers(state.precision.state_dict()),
        "data": data.state_dict(),
        "history": history,
        "position": {"step": state.step, "samples": None if batch is None else state.step * batch},
    }


def _optimizer(state: TrainState) -> dict[str, Any]:
    names = {id(p): name for name, p in state.model.named_parameters()}
    groups = state.optimizer.param_groups
    return {
        "state": {
            names[id(p)]: state.optimizer.state[p] for group in groups for p in group["params"]
        },
        "param_groups": {
            number: _numbers({key: value for key, value in group.items() if key != "params"})
            | {"params": [names[id(p)] for p in group["params"]]}
            for number, group in enumerate(groups)
        },
    }


def _numbers(tree: dict[str, Any]) -> dict[str, Any]:
    """A compiled step holds its settings in tensors of one element."""
    return {
        key: value.item() if isinstance(value, torch.Tensor) and value.dim() == 0 else value
        for key, value in tree.items()
    }


def _own(state: TrainState) -> dict[str, Any]:
    """What no two ranks share."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    rng: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys, np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
    }
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    return {"rng": rng, "comm_hook": state.comm_hook.state_dict()}
