"""Which cells of a sweep tell what a piece of advice gained."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.compare import advised
from paceline.record.schema import empty_record


def cell(number: int, rates: list[float], *overrides: str, trial: str = "t") -> list[Any]:
    made = []
    for repeat, rate in enumerate(rates):
        record = empty_record()
        record["job"] |= {
            "name": f"c{number}-r{repeat}",
            "overrides": [f"repeat={repeat}", *overrides],
            "config_hash": f"c{number}",
            "trial_hash": trial if number == 0 else f"other{number}",
            "repeat": repeat,
        }
        record["status"]["state"], record["validity"]["verdict"] = "completed", "valid"
        record["throughput"]["sustained_units_per_s"] = rate
        made.append(record)
    return made


PREDICTED: dict[str, Any] = {"trial_hash": "t", "override": "a=2", "predicted_gain": 2.0}


def test_the_cell_with_that_override_and_no_other() -> None:
    records = [
        *cell(0, [10.0, 20.0, 10.0], "x=1", "a=1"),
        *cell(1, [20.0, 40.0, 20.0], "x=1", "a=2"),
        *cell(2, [90.0, 90.0, 90.0], "x=2", "a=2"),
        *cell(3, [70.0, 70.0, 70.0], "x=1", "a=3"),
    ]
    (found,) = advised.measured(records, [PREDICTED])
    # by pairs of one repeat: the machine was twice as fast in the second
    assert found["measured_gain"] == pytest.approx(2)
    assert found["measured_ci95"] == [pytest.approx(2), pytest.approx(2)]
    assert found["predicted_gain"] == 2.0


def test_a_key_that_was_at_its_default() -> None:
    records = [*cell(0, [10.0], "x=1"), *cell(1, [15.0], "x=1", "a=2")]
    (found,) = advised.measured(records, [PREDICTED])
    assert found["measured_gain"] == pytest.approx(1.5)
    assert found["measured_ci95"] is None  # one repeat


@pytest.mark.parametrize(
    "records",
    [
        [*cell(0, [10.0], "a=1", trial="u"), *cell(1, [20.0], "a=2")],  # another job was diagnosed
        [*cell(0, [10.0], "a=1"), *cell(1, [20.0], "a=2", "x=1")],  # something else differs too
        [*cell(0, [10.0], "a=2"), *cell(1, [20.0], "a=2", "tag=b")],  # it had it already
        [*cell(0, [10.0], "a=1")],
    ],
)
def test_cells_that_tell_nothing(records: list[Any]) -> None:
    assert advised.measured(records, [PREDICTED]) == []


def test_a_cell_that_failed_tells_nothing() -> None:
    records = [*cell(0, [10.0], "a=1"), *cell(1, [20.0], "a=2")]
    records[1]["status"]["state"] = "failed"
    assert advised.measured(records, [PREDICTED]) == []
