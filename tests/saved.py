"""Jobs that have saved, made in this process: for what reads checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.types import TrainState
from tests.checkpoint import training

MODES = ("sync", "dcp")


class Tied(nn.Module):
    """Some hundred kB with its optimizer, and one weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 64)
        self.second = nn.Linear(64, 64, bias=False)
        self.third = nn.Linear(64, 64, bias=False)
        self.third.weight = self.second.weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.third(self.second(self.first(inputs)).relu())
        return outputs


def state(seed: int) -> TrainState:
    torch.manual_seed(seed)
    return training.training(seed, Tied())


def opened(mode: str, directory: Path, **settings: Any) -> Any:
    """The live checkpointer of a job in that directory."""
    return training.opened(mode, directory, **{"every_steps": 1, "keep_last": 3} | settings)


def save(mode: str, directory: Path, *steps: int) -> dict[int, dict[str, Tensor]]:
    """A job that saved at those steps; step -> the model then."""
    made, saver = state(0), opened(mode, directory)
    models = {}
    for step in steps:
        training.train(made, step - made.step)
        assert saver.save(made, step, now=True)
        models[step] = {name: value.clone() for name, value in made.model.state_dict().items()}
    return models
