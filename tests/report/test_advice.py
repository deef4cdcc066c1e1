"""What is said of advice that a sweep measured."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.report import advice


def one(gain: float, interval: list[float] | None) -> dict[str, Any]:
    known = {"override": "a=2", "predicted_gain": 2.0, "predicted_bounds": [1.8, 2.2]}
    return known | {"measured_gain": gain, "measured_ci95": interval}


@pytest.mark.parametrize(
    ("gain", "interval", "said"),
    [
        (1.9, [1.85, 1.95], "measured 1.900 [1.850, 1.950]: as predicted"),
        (1.7, [1.6, 1.81], "measured 1.700 [1.600, 1.810]: can't tell"),
        (1.7, [1.6, 1.75], "measured 1.700 [1.600, 1.750]: NOT as predicted"),
        (1.7, None, "measured 1.700: NOT as predicted"),
    ],
)
def test_each_is_held_to_its_bounds(gain: float, interval: list[float] | None, said: str) -> None:
    measured = one(gain, interval)
    line, track = advice.checked_lines([measured], [measured, one(2.0, None)])
    assert line.startswith("advice a=2: predicted 2.000 times [1.800, 2.200], ")
    assert said in line
    assert track.startswith("predictions so far: 2 checked, median error ")


def test_without_one_nothing_is_said() -> None:
    assert advice.checked_lines([], [one(2.0, None)]) == []
