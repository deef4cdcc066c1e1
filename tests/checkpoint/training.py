"""A training of a few parameters, and the ways of saving it, opened as a rank opens them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.checkpoint import COMMON, MODES
from paceline import config
from paceline.comm_hook.none import Plain
from paceline.precision.full import FullPrecision
from paceline.types import Checkpoint, Context, Run, TrainState, World

ALONE = World(0, 0, 0, 1, torch.device("cpu"))
RUN = Run(1, 1, 0, None, 0, "cpu")
OFTEN = {"every_steps": 3, "keep_last": 2}
WORK = {"work_hash": "w", "config_hash": "c", "work": {"optimizer.lr": 0.1}}


class Position:
    """A data source that knows where it is."""

    sampling = "seeded"
    global_batch_size = 8

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def opened(
    mode: str,
    directory: Path,
    world: World = ALONE,
    identity: dict[str, Any] = WORK,
    **settings: Any,
) -> Checkpoint:
    context = Context(world, RUN, directory, config.build, identity)
    made: Checkpoint = config.build(COMMON | OFTEN | MODES[mode] | settings, context)
    return made


def training(seed: int, model: nn.Module | None = None, wrapped: Any = None) -> TrainState:
    """`wrapped(model)`: in place, before the optimizer is made."""
    torch.manual_seed(seed)
    model = model or nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    if wrapped is not None:
        wrapped(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    data: Any = Position(seed)
    return TrainState(model, optimizer, scheduler, FullPrecision(), data, Plain())


def train(state: TrainState, steps: int, saver: Checkpoint | None = None) -> list[bool]:
    """Steps of training; what `save` said after each."""
    said = []
    for _ in range(steps):
        state.optimizer.zero_grad()
        loss = state.model(torch.rand(3, 4)).square().sum()
        loss.backward()
        state.optimizer.step()
        state.scheduler.step()
        state.step += 1
        state.history.setdefault("loss", []).append(float(loss.detach()))
        if saver is not None:
            said.append(saver.save(state, state.step, now=False))
    return said


def tensors(state: TrainState) -> dict[str, torch.Tensor]:
    """Everything that training changes, by a name of its own."""
    names = {p: name for name, p in state.model.named_parameters()}
    found = {f"model.{name}": value for name, value in state.model.state_dict().items()}
    for parameter, entry in state.optimizer.state.items():
        for what, value in entry.items():
            found[f"optimizer.{names[parameter]}.{what}"] = value
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in found.items()
    }


def differing(one: TrainState, other: TrainState) -> list[str]:
    """Names of tensors that aren't equal to the bit."""
    mine, theirs = tensors(one), tensors(other)
    assert mine.keys() == theirs.keys()
    return [name for name in mine if not torch.equal(mine[name], theirs[name])]
