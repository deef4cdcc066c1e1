"""precision: what autocast really computes in, and clipping before the step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.precision.autocast import AutocastPrecision
from paceline.precision.full import FullPrecision


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [(FullPrecision(), torch.float32), (AutocastPrecision("cpu", torch.bfloat16), torch.bfloat16)],
)
def test_compute_dtype(precision: FullPrecision, dtype: torch.dtype) -> None:
    layer = nn.Linear(4, 2)
    for _ in range(2):  # the context can be entered again and again
        with precision.forward():
            assert layer(torch.rand(3, 4)).dtype == dtype
    assert layer.weight.dtype == torch.float32


def test_the_norm_is_the_one_before_clipping() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor([3.0, 4.0])
    norm = FullPrecision().step(optimizer, clip=1.0)
    assert norm is not None and norm.item() == pytest.approx(5.0)
    assert FullPrecision().skipped is None
    assert parameter.detach().tolist() == pytest.approx([-0.6, -0.8], rel=1e-4)


def test_without_clipping_no_norm_is_taken() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.tensor([3.0, 4.0])
    assert FullPrecision().step(optimizer, clip=None) is None
    assert parameter.detach().tolist() == [-3.0, -4.0]
