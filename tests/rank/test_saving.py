"""What saves cost: blocked time, and steps that writing in the background slowed."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.rank.ledger import PHASES, SAVED, STEADY, WARMUP, Steps
from paceline.rank.saving import recurring_s, slowed_s


def steps(seconds: list[float], tags: list[int]) -> Steps:
    count = len(seconds)
    return Steps(
        step=np.arange(count),
        tag=np.array(tags),
        start_s=np.cumsum(seconds),
        step_s=np.array(seconds),
        phase_s=np.zeros((count, len(PHASES))),
    )


SAVE = {"step": 4, "blocked_s": 0.3}
"""After step 3 of those counted from 0."""


def test_steps_beside_a_save_are_counted_and_the_blocked_one_is_not() -> None:
    tags = [WARMUP, STEADY, STEADY, SAVED, SAVED, SAVED, STEADY]
    made = steps([9.0, 1.0, 1.0, 1.3, 1.2, 1.1, 1.0], tags)
    assert slowed_s(made, made.tag, [SAVE]) == pytest.approx(0.3)
    assert recurring_s([SAVE], 0.3, every_steps=10) == pytest.approx(0.06)


def test_a_save_that_all_wait_for_slows_nothing() -> None:
    made = steps([1.0, 1.0, 1.0, 1.3, 1.0], [STEADY, STEADY, STEADY, SAVED, STEADY])
    assert slowed_s(made, made.tag, [SAVE]) == 0
    assert recurring_s([SAVE], 0.0, every_steps=10) == pytest.approx(0.03)


def test_without_a_steady_step_it_is_unknown() -> None:
    made = steps([1.0, 1.3], [WARMUP, SAVED])
    assert slowed_s(made, made.tag, [SAVE]) is None
    assert recurring_s([], None, every_steps=10) == 0
