"""The state of a training as a tree of tensors and plain values, and back.

One form whatever the wrappers. Keys are the bare model's own names:

    model      name -> tensor
    optimizer  state: name -> what -> tensor or number;  param_groups: "0" -> settings
    scheduler  precision  data      each one's own state_dict, of plain values
    history    loss, grad_norm, skipped: [steps] f64
    position   step; samples, of all ranks so far, null under sampling=own
    ranks      "0" -> rng and comm_hook of that rank, which no two share
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from paceline.types import CheckpointError, TrainState, World

PLAIN = (bool, int, float, str, bytes, type(None))
RANK_SEED, STEP_SEED = 1_000_003, 7_368_787
"""Primes: seeds of ranks and steps don't meet."""


def tree_of(state: TrainState, world: World) -> dict[str, Any]:
    """The state as it is: shards stay shards, and only this rank's own part is under `ranks`.

    Raises CheckpointError where some part's state_dict holds more than tensors and plain values.
    """
    batch = getattr(state.data, "global_batch_size", None)
    own = state.data.sampling == "own" or batch is None
    samples = None if own else state.step * batch  # type: ignore[operator]
    tree = {
        "model": dict(state.model.state_dict()),
        "optimizer": _named(state),
        "scheduler": _numbers(state.scheduler.state_dict()),
        "precision": _numbers(state.precision.state_dict()),
        "data": state.data.state_dict(),
        "history": {
            name: torch.tensor(values, dtype=torch.float64)
            for name, values in state.history.items()
            if values
        },
        "position": {"step": state.step, "samples": samples},
        "ranks": {str(world.rank): {"rng": get_rng(), "comm_hook": state.comm_hook.state_dict()}},
    }
    for where, value in leaves(tree):
        if not isinstance(value, Tensor) and type(value) not in PLAIN:
            raise CheckpointError(
                f"the state of {'.'.join(where)} is a {type(value).__name__}, which can't be "
                "saved: its state_dict() must give tensors, numbers, text, lists and dicts"
            )
    return tree


def whole(tree: dict[str, Any]) -> dict[str, Any]:
    """Every shard as the whole tensor, on the host: a collective for each."""
    gathered: dict[str, Any] = tree_map(
        lambda t: t.full_tensor().cpu() if isinstance(t, DTensor) else t, tree
    )
    return gathered


def leaves(tree: Any, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of everything that is no dict or list."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from leaves(value, (*where, str(key)))
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from leaves(value, (*where, str(number)))
    else:
        yield where, tree


def restore(state: TrainState, tree: dict[str, Any], world: World, seed: int) -> dict[str, Any]:
    """Put a tree that was read into `state`, in place. `seed`: of the run.

    Returns what was `restored`, and what had to be `rederived` or `reset` because other ranks or
    another precision go on. Raises CheckpointError when something is missing or doesn't fit.
    """
    fit(state, tree)
    report: dict[str, Any] = {"restored": [], "rederived": [], "reset": []}
    _load_model(state, tree["model"])
    _load_optimizer(state, tree["optimizer"])
    state.scheduler.load_state_dict(tree.get("scheduler", {}))
    state.data.load_state_dict(tree.get("data", {}))
    history = tree.get("history", {})
    state.history.update({name: values.tolist() for name, values in history.items()})
    state.step = tree["position"]["step"]
    report["restored"] += ["model", "optimizer", "scheduler", "data", "history", "position"]
    report[_load_precision(state, tree.get("precision", {}))].append("precision")
    _load_rank(state, tree["ranks"], world, seed, report)
    return report


def fit(state: TrainState, tree: dict[str, Any]) -> None:
    """Does it hold what this job needs, and nothing else?"""
    wrong = _unlike("model", tree["model"], state.model.state_dict())
    saved, mine = tree["optimizer"]["param_groups"], _groups(state)
    if len(saved) != len(mine):
        wrong.append(f"{len(saved)} parameter groups of the optimizer, {len(mine)} here")
    for number, group in mine.items():
        theirs = dict.fromkeys(saved.get(number, group)["params"])
        wrong += _unlike(f"optimizer group {number}", theirs, dict.fromkeys(group["params"]))
    if wrong:
        more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointError(f"the checkpoint doesn't fit this job: {'; '.join(wrong[:5])}{more}")


def get_rng() -> dict[str, Any]:
    """Every generator that a training draws from, in this process."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    cuda = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return cuda | {
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


def set_rng(rng: dict[str, Any]) -> None:
    torch.set_rng_state(rng["torch"])
    if "cuda" in rng and torch.cuda.is_available():
        torch.cuda.set_rng_state(rng["cuda"])
    python, numpy = rng["python"], rng["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    keys = numpy["keys"].numpy().astype(np.uint32)
    rest = (numpy["position"], numpy["has_gauss"], numpy["cached"])
    np.random.set_state((numpy["name"], keys, *rest))


def _named(state: TrainState) -> dict[str, Any]:
    """The optimizer's state_dict with names in the place of numbers, which are those of a process.
    Settings that a compiled step holds as tensors are numbers."""
    saved = state.optimizer.state_dict()
    names = [name for group in _groups(state).values() for name in group["params"]]
    groups = {
        str(number): _numbers({k: v for k, v in group.items() if k != "params"})
        | {"params": [names[i] for i in group["params"]]}
        for number, group in enumerate(saved["param_groups"])
    }
    return {"state": {names[i]: v for i, v in saved["state"].items()}, "param_groups": groups}


def _groups(state: TrainState) -> dict[str, dict[str, Any]]:
    """Number of a group -> its parameters' names, in the optimizer's order."""
    names = {id(p): name for name, p in state.model.named_parameters()}
    return {
        str(number): {"params": [names[id(p)] for p in group["params"]]}
        for number, group in enumerate(state.optimizer.param_groups)
    }


def _numbers(tree: Any) -> Any:
    """Tensors of one element, as a compiled optimizer step needs them, as the numbers they are."""
    if isinstance(tree, Mapping):
        return {key: _numbers(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_numbers(value) for value in tree]
    return tree.item() if isinstance(tree, Tensor) and tree.dim() == 0 else tree


def _load_model(state: TrainState, saved: dict[str, Any]) -> None:
    sharded = any(isinstance(value, DTensor) for value in state.model.state_dict().values())
    if sharded and not any(isinstance(value, DTensor) for value in saved.values()):
        set_model_state_dict(state.model, saved, options=StateDictOptions(full_state_dict=True))
    else:
        state.model.load_state_dict(saved)


def _load_optimizer(state: TrainState, saved: dict[str, Any]) -> None:
    optimizer = state.optimizer
    groups = _groups(state)
    names = [name for group in groups.values() for name in group["params"]]
    parameters = dict(state.model.named_parameters())
    entries = {
        number: {what: _like(value, parameters[name]) for what, value in entry.items()}
        for number, name in enumerate(names)
        if (entry := saved.get("state", {}).get(name)) is not None
    }
    numbers = {name: number for number, name in enumerate(names)}
    before = [dict(group) for group in optimizer.param_groups]
    optimizer.load_state_dict(
        {
            "state": entries,
            "param_groups": [
                _settings(saved["param_groups"][number], group)
                | {"params": [numbers[name] for name in groups[number]["params"]]}
                for number, group in zip(groups, before, strict=True)
            ],
        }
    )
    for group, old in zip(optimizer.param_groups, before, strict=True):
        for key, value in old.items():  # a compiled step reads the tensor that it was compiled with
            if isinstance(value, Tensor):
                group[key] = value.fill_(group[key])


def _settings(saved: dict[str, Any], mine: dict[str, Any]) -> dict[str, Any]:
    """A group's settings: saved ones, but how the step is computed is this job's."""
    own = {key: mine[key] for key in ("foreach", "fused", "capturable") if key in mine}
    tuples = {key: tuple(v) for key, v in saved.items() if isinstance(mine.get(key), tuple)}
    return saved | tuples | own


def _like(value: Any, parameter: Tensor) -> Any:
    """Whole state of a sharded parameter, sharded as it is."""
    if (
        isinstance(parameter, DTensor)
        and isinstance(value, Tensor)
        and not isinstance(value, DTensor)
        and value.shape == parameter.shape
        and value.dim()
    ):
        # every rank has read the same: nothing has to travel
        moved = value.to(parameter.device)
        return distribute_tensor(
            moved, parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    return value


def _load_precision(state: TrainState, saved: dict[str, Any]) -> str:
    """A loss scale starts anew where another precision saved none."""
    if set(saved) != set(state.precision.state_dict()):
        return "reset"
    state.precision.load_state_dict(saved)
    return "restored"


def _load_rank(
    state: TrainState, ranks: dict[str, Any], world: World, seed: int, report: dict[str, Any]
) -> None:
    mine = ranks.get(str(world.rank))
    if mine is not None:
        hook = mine.get("comm_hook", {})
        if set(hook) == set(state.comm_hook.state_dict()):
            state.comm_hook.load_state_dict(hook)
            report["restored"].append("comm_hook")
        else:
            report["reset"].append("comm_hook")
        set_rng(mine["rng"])
        report["restored"].append("rng")
        return
    fresh = seed + RANK_SEED * (world.rank + 1) + STEP_SEED * state.step
    random.seed(fresh)
    np.random.seed(fresh % 2**32)
    torch.manual_seed(fresh)
    report["rederived"].append("rng")
    if state.comm_hook.state_dict():
        report["reset"].append("comm_hook")


def _unlike(what: str, saved: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    missing = [f"{what}: {name} is missing" for name in mine if name not in saved]
    unknown = [f"{what}: {name} isn't known here" for name in saved if name not in mine]
    shapes = [
        f"{what}: {name} has shape {list(value.shape)}, {list(mine[name].shape)} here"
        for name, value in saved.items()
        if isinstance(value, Tensor) and name in mine and value.shape != mine[name].shape
    ]
    return missing + unknown + shapes
