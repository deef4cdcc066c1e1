"""precision=bf16_pure: all of it is bfloat16, but the loss and the recorded norm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.precision.clip import clip_gradients
from paceline.precision.pure import Pure, PurePrecision
from paceline.types import Context, Run, World


def pure(directory: Path) -> PurePrecision:
    context = Context(
        World(0, 0, 0, 1, torch.device("cpu")),
        Run(1, 1, 0, None, 0, "cpu"),
        directory,
        lambda node: node,
    )
    return Pure("bfloat16").open(context)


class Named(nn.Module):
    """Floating and integer inputs, by position and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("shift", torch.ones(2))
        self.got: list[torch.dtype] = []

    def forward(self, images: torch.Tensor, labels: torch.Tensor, *, mask: Any) -> torch.Tensor:
        self.got = [images.dtype, labels.dtype, mask["floats"].dtype]
        out: torch.Tensor = self.layer(images) + self.shift
        return out


def test_parameters_and_inputs_are_converted(tmp_path: Path) -> None:
    model, precision = Named(), pure(tmp_path)
    keys = list(model.state_dict())
    precision.prepare(model)
    out = model(torch.rand(3, 4), torch.arange(3), mask={"floats": torch.rand(3)})
    assert model.got == [torch.bfloat16, torch.int64, torch.bfloat16]
    assert out.dtype == torch.bfloat16
    assert {t.dtype for t in model.state_dict().values()} == {torch.bfloat16}
    assert list(model.state_dict()) == keys


def test_it_trains_with_everything_in_bfloat16(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, precision = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)), pure(tmp_path)
    precision.prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.rand(64, 8)
    targets, losses = inputs.square().sum(1, keepdim=True), []
    for _ in range(60):
        optimizer.zero_grad()
        with precision.forward():
            loss = (model(inputs).float() - targets).square().mean()
        precision.scale(loss).backward()
        precision.step(optimizer, 1.0)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.05 * losses[0]
    states = [t for s in optimizer.state.values() for t in s.values() if t.dim()]
    assert {t.dtype for t in states} == {torch.bfloat16}
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.bfloat16}


def test_the_norm_is_exact_in_float32_and_what_is_clipped_by_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    grads = [torch.rand(1000).bfloat16(), torch.rand(7, 30).bfloat16()]
    exact = float(torch.cat([g.double().flatten() for g in grads]).norm())

    def optimizer() -> torch.optim.SGD:
        parameters = [nn.Parameter(torch.zeros_like(g)) for g in grads]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad.clone()
        unused = nn.Parameter(torch.zeros(2).bfloat16())
        return torch.optim.SGD([*parameters, unused], lr=1.0)

    mine = optimizer()
    norm = pure(tmp_path).step(mine, 0.5)
    assert norm is not None and norm.dtype == torch.float32
    assert float(norm) == pytest.approx(exact, rel=1e-5)
    moved = torch.cat([p.detach().double().flatten() for p in mine.param_groups[0]["params"]])
    assert float(moved.norm()) == pytest.approx(0.5, rel=4e-3)  # bfloat16 has 3 digits
    rough = clip_gradients(optimizer(), 0.5)
    assert rough is not None and abs(float(rough) - exact) > abs(float(norm) - exact)


def test_without_clipping_no_norm_is_taken(tmp_path: Path) -> None:
    parameter = nn.Parameter(torch.zeros(2).bfloat16())
    parameter.grad = torch.ones(2).bfloat16()
    assert pure(tmp_path).step(torch.optim.SGD([parameter], lr=1.0), None) is None
    assert parameter.tolist() == [-1.0, -1.0]
