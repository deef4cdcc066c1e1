"""Which operators are large: told from steps that another process interrupts."""

from __future__ import annotations

import pytest

from paceline.rank.operators import LARGE_S, Taken, _usual

LARGE = 1e6 * LARGE_S


def step(*us: float) -> Taken:
    return [(f"op{i}", value, True) for i, value in enumerate(us)]


def test_only_large_ones_are_added_up() -> None:
    assert _usual([step(1, LARGE, LARGE - 1, 300)]) == (4, LARGE + 300)


def test_an_interrupted_one_is_not_large() -> None:
    seen = [step(4000, 1, 300), step(1, 4000, 310), step(1, 2, 4000)]
    assert _usual(seen) == (3, 300)


def test_of_steps_that_differ_the_least_counts() -> None:
    assert _usual([step(1, 400), step(1, 300, 1)]) == (3, 300)


@pytest.mark.parametrize("us", [3.0, 300.0])
def test_kernels_compute_however_short(us: float) -> None:
    kernels: Taken = [("kernel", us, False), ("aten::mm", 0.0, True)]
    assert _usual([kernels]) == (1, us)
