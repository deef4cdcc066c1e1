"""Break-even and gains, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.record.economics import Turns, compile_pays, gain


def turns(base: list[float], other: list[float]) -> Turns:
    return Turns(np.array(base), np.array(other))


def test_the_break_even_step() -> None:
    # 12 s of compiling, 0.3 s gained a step: 40 steps
    found = compile_pays(turns([0.7] * 5, [1.0] * 5), 12.0)
    assert found["break_even_steps"] == 40
    assert found["break_even_ci95"] == [40, 40]
    assert found["speedup_over_eager"] == pytest.approx(1 / 0.7)
    assert found["break_even_why"] is None


def test_its_interval_holds_the_noise_of_the_pairs() -> None:
    found = compile_pays(turns([0.5, 0.5, 0.5, 0.5], [0.98, 1.02, 0.99, 1.01]), 10.0)
    low, high = found["break_even_ci95"]
    assert low < found["break_even_steps"] < high


def test_drift_of_the_machine_falls_out() -> None:
    # both get slower from pair to pair, the ratio stays
    found = compile_pays(turns([1.0, 2.0, 4.0], [1.5, 3.0, 6.0]), 8.0)
    assert found["speedup_ci95"] == pytest.approx([1.5, 1.5])
    assert found["break_even_steps"] == 8


@pytest.mark.parametrize(
    ("other", "why"),
    [([0.8, 0.81, 0.79], "never: eager is faster"), ([1.2, 0.8, 1.0], "can't tell: eager is ab")],
)
def test_there_is_none_where_eager_is_not_clearly_slower(other: list[float], why: str) -> None:
    found = compile_pays(turns([1.0] * 3, other), 10.0)
    assert found["break_even_steps"] is found["break_even_ci95"] is None
    assert found["break_even_why"].startswith(why)


def test_a_gain_is_the_inverse_of_the_step() -> None:
    found = gain(turns([1.0, 1.0, 1.0], [0.5, 0.5, 0.5]))
    assert (found["step_s"], found["speedup"]) == (0.5, pytest.approx(2.0))
    assert found["speedup_ci95"] == pytest.approx([2.0, 2.0])
    assert gain(turns([1.0], [0.5]))["speedup_ci95"] is None
