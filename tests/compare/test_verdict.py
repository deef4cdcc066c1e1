"""Ratios and intervals by hand, verdicts at their edges, and how often a verdict is wrong."""

import math
from typing import Any

import numpy as np
import pytest

from paceline.compare.pairs import Cell, cells
from paceline.compare.verdict import (
    ONE_REPEAT,
    SAME_MARGIN,
    Verdict,
    agreement,
    judge,
    paired_ratio,
    why_unrated,
    worst,
)
from paceline.record.schema import empty_record


def made(name: str, rate: float | None, repeat: int = 0, work: str = "w") -> dict[str, Any]:
    record = empty_record()
    record["job"] |= {
        "name": f"{name}-r{repeat}",
        "config_hash": name,
        "work_hash": work,
        "repeat": repeat,
        "rerun": 0,
    }
    record["status"]["state"] = "completed"
    record["validity"]["verdict"] = "valid"
    record["throughput"]["sustained_units_per_s"] = rate
    return record


def made_cell(name: str, rates: list[float], work: str = "w") -> Cell:
    return cells([made(name, rate, i, work) for i, rate in enumerate(rates)])[0]


def judge_alone(cell: Cell, base: Cell) -> Verdict:
    return judge(cell, base, agreement(cell, base, []))


def judged(mine: list[float], theirs: list[float], work: str = "w") -> Any:
    return judge_alone(made_cell("mine", mine, work), made_cell("base", theirs))


def test_three_equal_ratios_are_exact() -> None:
    verdict = judged([110, 121, 99], [100, 110, 90])
    assert verdict.ratio == pytest.approx(1.1, rel=1e-14)
    assert verdict.ratio_ci95 == pytest.approx((1.1, 1.1), rel=1e-12)
    assert (verdict.verdict, verdict.note) == ("faster", None)


def test_an_interval_by_hand() -> None:
    # logs +-0.1 around log 1.2: sd = sqrt(2) / 10, half = 12.706 * sd / sqrt(2) = 1.2706
    rates = [(120 * math.exp(0.1), 100.0), (120 * math.exp(-0.1), 100.0)]
    ratio, interval = paired_ratio(rates)
    assert ratio == pytest.approx(1.2)
    assert interval == pytest.approx((1.2 / math.exp(1.2706), 1.2 * math.exp(1.2706)))
    verdict = judged([r for r, _ in rates], [100, 100])
    assert verdict.verdict == "cant_tell"
    assert verdict.ratio == pytest.approx(1.2)


def test_what_is_slow_for_both_cancels() -> None:
    """Pairs are measured side by side: a machine that halves its speed changes no ratio."""
    verdict = judged([110, 55, 99], [100, 50, 90])
    assert verdict.ratio == pytest.approx(1.1)
    assert verdict.verdict == "faster"


def test_slower() -> None:
    verdict = judged([90, 91, 89], [100, 100, 100])
    assert verdict.verdict == "slower"
    assert verdict.ratio_ci95[1] < 1


def test_same_needs_the_whole_interval_within_the_margin() -> None:
    assert judged([100.1, 99.9, 100], [100, 100, 100]).verdict == "same"
    assert judged([100, 100, 100], [100, 100, 100]).verdict == "same"
    wide = judged([101, 99, 100], [100, 100, 100])  # half = 4.303 * 0.01 / sqrt(3) = 2.5 %
    assert (wide.verdict, wide.note) == ("cant_tell", None)
    assert wide.ratio_ci95[1] - 1 > SAME_MARGIN
    assert judged([101, 101, 101], [100, 100, 100]).verdict == "faster"  # small, and certain


def test_one_repeat_ranks_nothing() -> None:
    verdict = judged([200], [100])
    assert verdict == judged([200], [100, 100])
    assert (verdict.ratio, verdict.ratio_ci95) == (pytest.approx(2, rel=1e-15), None)
    assert (verdict.verdict, verdict.note) == ("cant_tell", ONE_REPEAT)


def test_the_baseline_itself() -> None:
    verdict = judge_alone(made_cell("base", [100, 101]), made_cell("base", [100, 101]))
    assert (verdict.ratio, verdict.ratio_ci95, verdict.verdict) == (1.0, None, "baseline")


def test_other_work_shows_rates_and_no_rank() -> None:
    verdict = judged([110, 121, 99], [100, 110, 90], work="v")
    assert verdict.verdict == "other_work"
    assert verdict.ratio == pytest.approx(1.1)
    assert verdict.ratio_ci95 == pytest.approx((1.1, 1.1))
    assert judged([110], [100], work="v").verdict == "other_work"


def test_a_faster_cell_that_trains_otherwise_cannot_win() -> None:
    cell, base = made_cell("mine", [200, 202, 201]), made_cell("base", [100, 100, 100])
    for record in [*cell.records, *base.records]:
        record["numerics"]["loss"] = [5.0, 4.0, 3.0]
    assert judge_alone(cell, base).verdict == "faster"
    cell.records[1]["numerics"]["loss"] = [5.0, 4.1, 3.0]
    verdict = judge_alone(cell, base)
    assert (verdict.ratio, verdict.verdict) == (None, "invalid")
    assert verdict.note is not None
    assert verdict.note.startswith("diverged: the loss of step 1 is 4.1, the baseline's 4:")
    found = agreement(cell, base, [])
    assert (found.verdict, found.gate) == ("diverged", "tolerance")
    assert found.deviation == pytest.approx(0.025)
    assert agreement(base, base, []).verdict is None


def test_a_baseline_without_a_rate() -> None:
    base = made_cell("base", [100])
    base.records[0]["status"] |= {"state": "failed", "kind": "oom", "message": "no memory\nat all"}
    verdict = judge_alone(made_cell("mine", [100, 100]), base)
    assert (verdict.verdict, verdict.note) == ("cant_tell", "the baseline base has no valid rate")
    assert judge_alone(base, base).verdict == "invalid"


def test_never_measured_beside_the_baseline() -> None:
    cell = made_cell("mine", [100, 100])
    for record in cell.records:
        record["job"]["rerun"] = 1
    verdict = judge_alone(cell, made_cell("base", [100, 100]))
    assert verdict.verdict == "cant_tell"
    assert verdict.note is not None and "beside the baseline" in verdict.note


@pytest.mark.parametrize(
    ("state", "kind", "message", "note"),
    [
        ("failed", "oom", "\nno memory\nat all", "failed: oom: no memory"),
        ("skipped", None, "ddp needs two ranks", "ddp needs two ranks"),
        ("pending", None, None, "not run"),
        ("running", None, None, "running"),
        ("interrupted", None, "stopped", "interrupted: stopped"),
    ],
)
def test_a_cell_that_did_not_run(
    state: str, kind: str | None, message: str | None, note: str
) -> None:
    cell = made_cell("mine", [100])
    cell.records[0]["status"] |= {"state": state, "kind": kind, "message": message}
    verdict = judge_alone(cell, made_cell("base", [100]))
    assert (verdict.ratio, verdict.verdict, verdict.note) == (None, "invalid", note)


@pytest.mark.parametrize("state", ["completed", "invalid"])
def test_a_gate_that_fell_is_the_note(state: str) -> None:
    record = made("mine", 100)
    record["status"]["state"] = state
    record["validity"] = {"verdict": "ineffective", "reasons": ["no frame was compiled", "mfu"]}
    (cell,) = cells([record])
    assert judge_alone(cell, made_cell("base", [100])).note == "ineffective: no frame was compiled"
    record["validity"]["reasons"] = []
    assert why_unrated(record) == "ineffective: it has no sustained rate"


def test_the_worst_record() -> None:
    records = [made("a", 1.0, i) for i in range(3)]
    records[0]["status"]["state"] = "pending"
    records[2]["status"]["state"] = "failed"
    assert worst(records) is records[2]
    assert worst(records[:2]) is records[0]
    assert worst(records[1:2]) is records[1]


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_how_often_two_equal_cells_are_told_apart(repeats: int) -> None:
    """A/A: 5 % is what a 95 % interval promises; common drift of a pair cancels."""
    random = np.random.default_rng(repeats)
    sweeps, wrong = 2000, 0
    for _ in range(sweeps):
        drift = 0.2 * random.normal(size=repeats)
        mine, theirs = (100 * np.exp(drift + 0.013 * random.normal(size=repeats)) for _ in "ab")
        wrong += judged(mine.tolist(), theirs.tolist()).verdict in ("faster", "slower")
    assert 0.02 <= wrong / sweeps <= 0.08


def test_a_real_difference_is_found() -> None:
    random = np.random.default_rng(1)
    found = 0
    for _ in range(200):
        mine, theirs = (rate * np.exp(0.013 * random.normal(size=3)) for rate in (120.0, 100.0))
        found += judged(mine.tolist(), theirs.tolist()).verdict == "faster"
    assert found >= 180


def test_wild_rates_give_numbers() -> None:
    ratio, interval = paired_ratio([(1e-100, 1e100), (1e100, 1e-100)])
    assert ratio is not None and interval is not None
    assert all(map(math.isfinite, (ratio, *interval)))
