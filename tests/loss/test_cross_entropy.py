"""Cross-entropy: sum and weight, against values by hand and torch's own mean."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paceline.loss.cross_entropy import CrossEntropy, CrossEntropySum

AS_IS = nn.Identity()


def opened(ignore_index: int | None = None, label_smoothing: float = 0.0) -> CrossEntropySum:
    return CrossEntropy(ignore_index, label_smoothing).open(None)


def test_sum_and_weight_by_hand() -> None:
    # odds 1:3 and 3:1 for class 0: -ln(1/4) - ln(1/4)
    logits = torch.tensor([[0.0, math.log(3)], [math.log(3), 0.0]])
    total, weight = opened()(AS_IS, (logits, torch.tensor([0, 1])))
    assert total.item() == pytest.approx(2 * math.log(4))
    assert weight.item() == 2
    assert total.shape == weight.shape == ()
    assert total.dtype == weight.dtype == torch.float32


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_sum_over_weight_is_torchs_mean_over_all_tokens(label_smoothing: float) -> None:
    logits, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    total, weight = opened(None, label_smoothing)(AS_IS, (logits, targets))
    mean = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=label_smoothing)
    assert weight.item() == 10
    torch.testing.assert_close(total / weight, mean)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_ignored_targets_count_neither_in_the_sum_nor_in_the_weight(label_smoothing: float) -> None:
    loss = opened(-1, label_smoothing)
    logits, targets = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    targets[0, 1:] = -1
    total, weight = loss(AS_IS, (logits, targets))
    kept = targets != -1
    mean = F.cross_entropy(logits[kept], targets[kept], label_smoothing=label_smoothing)
    assert not loss.fixed_weight
    assert weight.item() == 6
    assert weight.dtype == torch.float32
    torch.testing.assert_close(total / weight, mean)


def test_a_batch_with_nothing_to_learn_is_zero_of_zero_not_nan() -> None:
    logits = torch.randn(3, 7, requires_grad=True)
    total, weight = opened(0)(AS_IS, (logits, torch.zeros(3, dtype=torch.int64)))
    total.backward()
    assert (total.item(), weight.item()) == (0, 0)
    assert torch.equal(logits.grad, torch.zeros(3, 7))


def test_without_an_ignored_index_torchs_own_is_an_error_not_a_hole() -> None:
    loss = opened()
    assert loss.fixed_weight
    with pytest.raises(IndexError, match="-100 is out of bounds"):
        loss(AS_IS, (torch.randn(2, 7), torch.tensor([1, -100])))


def test_low_precision_logits_are_summed_in_float32() -> None:
    logits, targets = torch.randn(4000, 7).bfloat16(), torch.randint(7, (4000,))
    total, _ = opened()(AS_IS, (logits, targets))
    assert total.dtype == torch.float32
    expected = F.cross_entropy(logits.double(), targets, reduction="sum").item()
    assert total.item() == pytest.approx(expected, rel=1e-5)


def test_the_fixed_weight_is_made_once_a_size() -> None:
    loss = opened()

    def weight(rows: int) -> torch.Tensor:
        return loss(AS_IS, (torch.randn(rows, 7), torch.zeros(rows, dtype=torch.int64)))[1]

    assert weight(4) is weight(4)
    assert (weight(3).item(), weight(4).item()) == (3, 4)


def test_a_weight_first_made_while_evaluating_serves_in_training() -> None:
    loss = opened()
    logits, targets = torch.randn(4, 7, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    with torch.inference_mode():
        loss(AS_IS, (logits, targets))
    total, weight = loss(AS_IS, (logits, targets))
    (total * weight).backward()
    assert logits.grad is not None


def test_values_are_checked() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing=1\.5: give a share from 0 to 1"):
        CrossEntropy(None, 1.5)


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    loss = opened(-1)
    logits, targets = torch.randn(6, 7), torch.tensor([1, -1, 2, -1, -1, 3])
    whole, weight = loss(AS_IS, (logits, targets))
    parts = [loss(AS_IS, (logits[i : i + 2], targets[i : i + 2])) for i in (0, 2, 4)]
    torch.testing.assert_close(sum(p[0] for p in parts), whole)
    assert sum(p[1].item() for p in parts) == weight.item() == 3
