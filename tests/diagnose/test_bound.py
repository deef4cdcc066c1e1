"""What a step is bound by, told by phases and counter-runs worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.diagnose.bound import diagnosis
from paceline.record.schema import empty_record
from tests.diagnose.records import CHOICES, CONFIG, record, run


def found(made: dict[str, Any]) -> dict[str, Any]:
    return diagnosis(made, CONFIG, CHOICES)


@pytest.mark.parametrize(
    ("phases", "bound", "share"),
    [
        ({"data_wait": 8, "forward": 2}, "input", 0.8),
        ({"data_wait": 1, "forward": 4, "backward": 5}, "compute", 0.9),
        ({"optimizer": 7, "forward": 3}, "optimizer", 0.7),
        ({"forward": 4, "checkpoint": 6}, "checkpoint", 0.6),
        ({"forward": 2, "recompile": 8}, "recompile", 0.8),
        ({"data_wait": 4, "forward": 2, "optimizer": 2, "other": 2}, "input", 0.4),
    ],
)
def test_the_largest_share_of_a_sustained_step(
    phases: dict[str, float], bound: str, share: float
) -> None:
    said = found(record(**phases))
    assert (said["bound"], said["share"]) == (bound, pytest.approx(share))
    assert sum(said["shares"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "phases",
    [
        {"data_wait": 4, "forward": 3.5, "optimizer": 2.5},  # not clearly more than the next
        {"data_wait": 3, "forward": 2.5, "optimizer": 2.5, "checkpoint": 2},  # all are small
    ],
)
def test_no_clear_answer_is_said(phases: dict[str, float]) -> None:
    said = found(record(**phases))
    assert (said["bound"], said["share"]) == ("undetermined", None)


def test_no_steady_step() -> None:
    assert found(empty_record())["bound"] == "undetermined"


def test_a_job_that_compiles_in_every_step() -> None:
    made = empty_record()
    made["compile"] |= {"first_step_s": 1.0, "recompiles": [{"compile_s": 0.8}] * 5}
    made["ledger"]["phases_s"] |= {"compile": 6.0}
    said = found(made)
    assert (said["bound"], said["share"]) == ("recompile", pytest.approx(4 / 5))


def test_what_isnt_known_is_no_zero() -> None:
    made = record(ranks=2, forward=5, backward=5)
    said = found(made)
    assert "communication" not in said["shares"]
    assert said["bound"] == "undetermined"
    assert any("isn't told apart" in text for text in said["evidence"])
    made["counter_runs"] = [run("no_sync", 10, 3)]
    said = found(made)
    assert (said["bound"], said["share"]) == ("communication", pytest.approx(0.7))


class TestHostOrCompute:
    """Forward and backward take 9 of 10 ms; what grows with the batch computes."""

    @pytest.mark.parametrize(
        ("twice_ms", "bound", "share"), [(11, "host", 0.8), (18, "compute", 0.8)]
    )
    def test_by_twice_the_batch(self, twice_ms: float, bound: str, share: float) -> None:
        made = record(forward=5, backward=4, optimizer=1)
        made["counter_runs"] = [run("double_batch", 10, twice_ms, work=2)]
        said = found(made)
        assert (said["bound"], said["share"]) == (bound, pytest.approx(share))

    def test_large_weights_compute_though_they_dont_grow(self) -> None:
        made = record(forward=5, backward=4, optimizer=1)
        double = run("double_batch", 10, 11, work=2)
        made["counter_runs"] = [double, {"name": "operators", "operators": 9, "large_s": 0.008}]
        said = found(made)
        assert (said["bound"], said["share"]) == ("compute", pytest.approx(0.8))

    def test_without_it_the_doubt_is_said(self) -> None:
        said = found(record(forward=9, optimizer=1))
        assert said["bound"] == "compute"
        assert any("may be the host's overhead" in text for text in said["evidence"])


def test_a_counter_run_knows_better_than_a_phase() -> None:
    """A step that waits for a loader, whose time another cost fills when it is gone."""
    made = record(data_wait=6, forward=4)
    made["counter_runs"] = [run("cached_batch", 10, 9.5)]
    shares = found(made)["shares"]
    assert shares["input"] == pytest.approx(0.05)
    assert shares["compute"] == pytest.approx(0.95)  # the others make up the rest


def test_a_measured_window_with_a_long_pause() -> None:
    """The window was held up where the turns weren't: the rest is told by the turns' own steps."""
    made = record(data_wait=9, forward=9, optimizer=1)
    made["counter_runs"] = [run("cached_batch", 10, 10), run("double_batch", 10, 11, work=2)]
    said = found(made)
    assert (said["bound"], said["share"]) == ("host", pytest.approx(0.8))
    assert sum(said["shares"].values()) == pytest.approx(1)
