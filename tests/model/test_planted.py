"""A network whose bottleneck is known: each plant is there, costs nothing else, and can be left
out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.model.planted import Planted, PlantedModel

PLAIN = Planted(
    features=6,
    width=4,
    layers=2,
    outputs=3,
    python_calls=0,
    host_wait_s=0.0,
    matmul=0,
    parameters=0,
    slow_rank=-1,
    slow_s=0.0,
    without="nothing",
)


def made(rank: int = 0, **settings: Any) -> PlantedModel:
    torch.manual_seed(0)
    return PlantedModel(replace(PLAIN, **settings), rank)


def test_any_length_gives_an_output_a_sample() -> None:
    model = made(matmul=5, parameters=3, python_calls=2)
    for length in (1, 7):
        outputs = model(torch.randn(2, length, 6))
        assert outputs.shape == (2, 3)
    outputs.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_operators_on_one_number_change_nothing() -> None:
    inputs = torch.randn(2, 5, 6)
    assert torch.equal(made()(inputs), made(python_calls=9)(inputs))


@pytest.mark.parametrize(
    ("plant", "bound", "what"),
    [
        ({"python_calls": 9}, "host", "calls"),
        ({"host_wait_s": 0.5}, "host", "wait_s"),
        ({"slow_rank": 0, "slow_s": 0.5}, "straggler", "slow_s"),
        ({"matmul": 8}, "compute", "square"),
    ],
)
def test_a_plant_is_left_out(plant: dict[str, Any], bound: str, what: str) -> None:
    assert getattr(made(**plant), what)
    assert not getattr(made(**plant, without=bound), what)
    assert getattr(made(**plant, without="input"), what)


def test_many_small_parameters() -> None:
    count = len(list(made().parameters()))
    assert len(list(made(parameters=7).parameters())) == count + 7
    assert len(list(made(parameters=7, without="optimizer").parameters())) == count


def test_one_rank_alone_is_slow() -> None:
    assert made(rank=1, slow_rank=1, slow_s=0.5).slow_s == 0.5
    assert made(rank=0, slow_rank=1, slow_s=0.5).slow_s == 0.0
