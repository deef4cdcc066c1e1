"""Learning rates at the start, the end of the warm-up, the middle, the end and beyond."""

import pytest
import torch

from paceline.scheduler.warmup_cosine import WarmupCosine


def rates(settings: WarmupCosine, steps: int, lr: float = 2.0) -> list[float]:
    """The rate that each of the first `steps` optimizer steps trains with."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    scheduler = settings.open(None, optimizer)
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return used


def test_rates_by_hand() -> None:
    used = rates(WarmupCosine(warmup_steps=4, total_steps=12, final_fraction=0.1), 15)
    assert used[:4] == [0.5, 1.0, 1.5, 2.0]
    assert used[4] == 2.0  # the cosine starts at the full rate
    assert used[6] == pytest.approx(2 * (0.1 + 0.9 * (1 + 0.5**0.5) / 2))  # a quarter: cos 45
    assert used[8] == pytest.approx(2 * 0.55)  # half way: the mean of 1 and 0.1
    assert used[11] > 0.2
    assert used[12:] == pytest.approx([0.2, 0.2, 0.2])


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    used = rates(WarmupCosine(warmup_steps=0, total_steps=2, final_fraction=0.0), 4)
    assert used == pytest.approx([2.0, 1.0, 0.0, 0.0])


def test_a_warm_up_longer_than_the_training_is_cut_off() -> None:
    used = rates(WarmupCosine(warmup_steps=10, total_steps=3, final_fraction=0.1), 5)
    assert used == pytest.approx([0.2, 0.4, 0.6, 0.2, 0.2])


def test_a_warm_up_as_long_as_the_training() -> None:
    used = rates(WarmupCosine(warmup_steps=2, total_steps=2, final_fraction=0.5), 3)
    assert used == [1.0, 2.0, 1.0]


def test_it_goes_on_from_its_state() -> None:
    settings = WarmupCosine(warmup_steps=2, total_steps=8, final_fraction=0.0)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    scheduler = settings.open(None, optimizer)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    fresh = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    resumed = settings.open(None, fresh)
    fresh.load_state_dict(optimizer.state_dict())
    resumed.load_state_dict(scheduler.state_dict())
    fresh.step()
    resumed.step()
    assert fresh.param_groups[0]["lr"] == rates(settings, 5)[4]


@pytest.mark.parametrize(
    ("warmup_steps", "total_steps", "final_fraction", "message"),
    [
        (-1, 10, 0.1, "warmup_steps=-1: give 0 or more"),
        (1, 0, 0.1, "total_steps=0: give 1 or more"),
        (1, 10, 1.5, r"final_fraction=1\.5: give a share of the learning rate, 0 to 1"),
    ],
)
def test_values_are_checked(
    warmup_steps: int, total_steps: int, final_fraction: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        WarmupCosine(warmup_steps, total_steps, final_fraction)
