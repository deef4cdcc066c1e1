"""Squared error: sum and weight, against values by hand and torch's own mean."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paceline.loss.mse import Mse

AS_IS = nn.Identity()


def test_sum_and_weight_by_hand() -> None:
    loss = Mse().open(None)
    outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    total, weight = loss(AS_IS, (outputs, torch.tensor([[1.0, 0.0], [0.0, 4.0]])))
    assert loss.fixed_weight
    assert (total.item(), weight.item()) == (13, 4)
    assert total.dtype == weight.dtype == torch.float32


def test_sum_over_weight_is_torchs_mean() -> None:
    outputs, targets = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    total, weight = Mse().open(None)(AS_IS, (outputs, targets))
    torch.testing.assert_close(total / weight, F.mse_loss(outputs, targets))


def test_low_precision_is_summed_in_float32() -> None:
    outputs, targets = torch.randn(4000).bfloat16(), torch.randn(4000).double()
    total, _ = Mse().open(None)(AS_IS, (outputs, targets))
    assert total.dtype == torch.float32
    expected = (outputs.double() - targets).square().sum().item()
    assert total.item() == pytest.approx(expected, rel=1e-5)


def test_other_shapes_are_refused_rather_than_broadcast() -> None:
    with pytest.raises(ValueError, match=r"gives \[4, 1\], the targets are \[4\]"):
        Mse().open(None)(AS_IS, (torch.randn(4, 1), torch.randn(4)))


def test_a_few_steps_lower_the_loss() -> None:
    torch.manual_seed(0)
    loss, model = Mse().open(None), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(32, 3)
    batch = (inputs, inputs[:, :2] * 2)
    losses = []
    for _ in range(30):
        total, weight = loss(model, batch)
        optimizer.zero_grad()
        (total / weight).backward()
        optimizer.step()
        losses.append((total / weight).item())
    assert losses[-1] < 0.1 * losses[0]
