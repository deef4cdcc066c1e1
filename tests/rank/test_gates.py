"""Gates on one rank: what has no gradient is named, by the outermost module."""

from __future__ import annotations

import torch
from torch import nn

from paceline.rank.gates import unused_parameters


def test_all_are_used() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model(torch.rand(1, 2)).sum().backward()
    assert unused_parameters(model) == ([], [])


def test_parts_are_not() -> None:
    model = nn.ModuleDict(
        {
            "used": nn.Linear(2, 2),
            "never": nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)),
            "never_too": nn.Linear(2, 2),  # its name begins like another's
            "partly": nn.ModuleDict({"in": nn.Linear(2, 2), "out": nn.Linear(2, 2)}),
            "frozen": nn.Linear(2, 2).requires_grad_(False),
            "empty": nn.ReLU(),
        }
    )
    half = model["partly"]
    assert isinstance(half, nn.ModuleDict)
    half["in"](model["used"](torch.rand(1, 2))).sum().backward()
    parameters, layers = unused_parameters(model)
    assert layers == ["never", "never_too", "partly.out"]
    assert parameters == [
        f"{n}.{k}"
        for n in ("never.0", "never.2", "never_too", "partly.out")
        for k in ("weight", "bias")
    ]


def test_a_shared_parameter_is_used_wherever_it_is() -> None:
    model = nn.ModuleDict({"in": nn.Linear(2, 2, bias=False), "out": nn.Linear(2, 2, bias=False)})
    model["out"].weight = model["in"].weight
    model["in"](torch.rand(1, 2)).sum().backward()
    assert unused_parameters(model) == ([], [])
