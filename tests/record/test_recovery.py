"""What checkpoints cost: held to a simulation of failures, and to the formulas' sources."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.record.recovery import (
    economics,
    expected_goodput,
    goodput,
    recommended_interval_s,
)


def simulated(interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of time that went into training that lasted, over many failures at random moments."""
    draw = np.random.default_rng(0)
    lasting = total = 0.0
    for until_failure in draw.exponential(mtbf_s, 20_000):
        whole = int(max(0.0, until_failure - restart_s) // (interval_s + cost_s))
        lasting += whole * interval_s
        total += until_failure
    return lasting / total


@pytest.mark.parametrize(("cost_s", "mtbf_s"), [(1, 3600), (30, 3600), (120, 86400)])
def test_expected_goodput_is_that_of_a_simulation(cost_s: float, mtbf_s: float) -> None:
    interval_s, restart_s = recommended_interval_s(cost_s, mtbf_s), 60.0
    expected = expected_goodput(interval_s, cost_s, restart_s, mtbf_s)
    assert expected == pytest.approx(simulated(interval_s, cost_s, restart_s, mtbf_s), abs=0.01)


@pytest.mark.parametrize(("cost_s", "mtbf_s"), [(1, 3600), (30, 3600), (120, 86400)])
def test_no_other_interval_is_clearly_better(cost_s: float, mtbf_s: float) -> None:
    best_s = recommended_interval_s(cost_s, mtbf_s)
    best = simulated(best_s, cost_s, 0.0, mtbf_s)
    for factor in (0.3, 0.6, 1.7, 3.0):
        assert simulated(factor * best_s, cost_s, 0.0, mtbf_s) <= best + 0.002


def test_a_cheap_save_is_youngs_rule() -> None:
    assert recommended_interval_s(0.01, 86400) == pytest.approx(
        math.sqrt(2 * 0.01 * 86400), rel=1e-3
    )


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e7))
def test_it_is_positive_and_never_beyond_the_mean_time_between_failures(
    cost_s: float, mtbf_s: float
) -> None:
    assert 0 < recommended_interval_s(cost_s, mtbf_s) <= 1.5 * mtbf_s


def saves(*states: str) -> list[dict[str, object]]:
    return [
        {"step": n, "state": state, "blocked_s": 0.5, "durable_s": 2.0, "bytes": 100}
        for n, state in enumerate(states)
    ]


def test_the_section_counts_what_was_committed() -> None:
    assert economics(saves("failed"), 0.0, 0.1, 10, 5.0, 3600) is None
    found = economics(saves("committed", "failed", "committed"), 0.25, 0.1, 10, 5.0, 3600)
    assert found is not None
    assert (found["blocked_s"], found["slowed_s"], found["durable_s"]) == (0.5, 0.25, 2.0)
    assert found["every_s"] == pytest.approx(1.0)
    assert found["recommended_every_s"] == recommended_interval_s(0.75, 3600)
    assert found["recommended_every_steps"] == round(found["recommended_every_s"] / 0.1)
    assert found["expected_goodput"] == expected_goodput(1.0, 0.75, 5.0, 3600)
    unknown = economics(saves("committed"), None, None, 10, 5.0, 3600)
    assert unknown is not None
    assert unknown["every_s"] is unknown["expected_goodput"] is None


def test_goodput_is_of_all_attempts_or_unknown() -> None:
    assert goodput(100, 0.1, [5.0, 15.0]) == 0.5
    assert goodput(100, 0.1, [None, 15.0]) is None
    assert goodput(100, None, [15.0]) is None
