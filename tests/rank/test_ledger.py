"""The ledger: marks become phases and steps, and cost next to nothing."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from paceline.rank.ledger import (
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    OPTIMIZER,
    OTHER,
    PHASES,
    STEADY,
    WARMUP,
    Ledger,
)

CPU = torch.device("cpu")


class Clock:
    """perf_counter under the test's hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def test_phases_and_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ledger = Ledger(CPU)
    clock.pass_(5)  # before the stretch: belongs to no step
    ledger.begin()
    for step, wait in ((7, 1.0), (8, 2.0)):
        clock.pass_(wait)
        ledger.mark(DATA_WAIT)
        clock.pass_(3.0)
        ledger.mark(FORWARD)
        clock.pass_(0.5)
        ledger.mark(OTHER)
        ledger.end_step(step, WARMUP if step == 7 else STEADY)
    clock.pass_(50)  # an evaluation between two stretches
    ledger.begin()
    clock.pass_(4.0)
    ledger.mark(FORWARD)
    ledger.end_step(9, STEADY)

    steps = ledger.steps()
    assert steps.step.tolist() == [7, 8, 9]
    assert steps.tag.tolist() == [WARMUP, STEADY, STEADY]
    assert steps.step_s.tolist() == [4.5, 5.5, 4.0]
    assert steps.start_s.tolist() == [105.0, 109.5, 165.0]
    assert steps.phase_s[:, DATA_WAIT].tolist() == [1.0, 2.0, 0.0]
    assert steps.phase_s[:, FORWARD].tolist() == [3.0, 3.0, 4.0]
    assert np.array_equal(steps.phase_s.sum(axis=1), steps.step_s)
    assert steps.phase_s.shape == (3, len(PHASES))


def test_accumulation_adds_to_the_same_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ledger = Ledger(CPU)
    ledger.begin()
    for _ in range(4):
        clock.pass_(1)
        ledger.mark(DATA_WAIT)
        clock.pass_(2)
        ledger.mark(FORWARD)
    ledger.end_step(0, STEADY)
    steps = ledger.steps()
    assert steps.phase_s[0, DATA_WAIT] == 4
    assert steps.phase_s[0, FORWARD] == 8


def test_marks_after_the_last_step_count_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ledger = Ledger(CPU)
    ledger.begin()
    clock.pass_(1)
    ledger.mark(FORWARD)
    ledger.end_step(0, STEADY)
    clock.pass_(9)
    ledger.mark(DATA_WAIT)  # a step that was never finished
    assert ledger.steps().step_s.tolist() == [1.0]


def test_an_empty_ledger() -> None:
    steps = Ledger(CPU).steps()
    assert len(steps.step) == len(steps.step_s) == len(steps.start_s) == 0
    assert steps.phase_s.shape == (0, len(PHASES))


def test_the_share_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    ledger = Ledger(CPU)
    assert ledger.recent_share(DATA_WAIT) is None
    ledger.begin()
    clock.pass_(1)
    ledger.mark(DATA_WAIT)
    clock.pass_(3)
    ledger.mark(FORWARD)
    assert ledger.recent_share(DATA_WAIT) == 0.25
    clock.pass_(2)
    ledger.mark(DATA_WAIT)
    assert ledger.recent_share(DATA_WAIT) == 1.0
    clock.pass_(9)
    ledger.begin()  # what was done in between is no step's
    clock.pass_(1)
    ledger.mark(DATA_WAIT)
    clock.pass_(1)
    ledger.mark(FORWARD)
    assert ledger.recent_share(DATA_WAIT) == 0.5


def test_the_open_phase_names_where_a_failure_was() -> None:
    ledger = Ledger(CPU)
    assert ledger.phase() == "build"
    ledger.begin()
    assert ledger.phase() == "data_wait"
    ledger.mark(OPTIMIZER)  # zero_grad opens a step
    assert ledger.phase() == "data_wait"
    for mark, then in ((DATA_WAIT, "forward"), (FORWARD, "backward")):
        ledger.mark(mark)
        assert ledger.phase() == then
    ledger.mark(BACKWARD)
    assert ledger.phase() == "optimizer"
    ledger.mark(OPTIMIZER)
    assert ledger.phase() == "other"
    ledger.mark(OTHER)
    assert ledger.phase() == "checkpoint"
    ledger.end_step(0, STEADY)
    assert ledger.phase() == "data_wait"


def test_between_micro_batches_the_data_is_waited_for() -> None:
    ledger = Ledger(CPU, accumulation=2)
    ledger.begin()
    for then in ("data_wait", "optimizer"):
        for mark in (DATA_WAIT, FORWARD, BACKWARD):
            ledger.mark(mark)
        assert ledger.phase() == then


def test_a_step_of_marks_costs_little_beside_a_real_one() -> None:
    # law 5: under 5 us a step on a CPU; held as a share of one small matrix product, in one run
    ledger = Ledger(CPU)
    a = torch.rand(256, 256)

    def best(action: object) -> float:
        times = []
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(50):
                action()  # type: ignore[operator]
            times.append((time.perf_counter() - start) / 50)
        return min(times)

    def marks() -> None:
        for _ in range(8):
            ledger.mark(FORWARD)
        ledger.end_step(0, STEADY)

    ledger.begin()
    torch.set_num_threads(1)
    assert best(marks) < best(lambda: a @ a) / 10
