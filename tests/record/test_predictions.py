"""The file of predictions: one a trial and override, kept by several commands at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from paceline.record import predictions
from paceline.record.schema import empty_record


def one(trial: str, override: str = "a=1", gain: float = 2.0, **more: Any) -> dict[str, Any]:
    made = {
        "trial_hash": trial,
        "override": override,
        "job": "/nowhere",
        "predicted_gain": gain,
        "predicted_bounds": [gain / 2, gain * 2],
        "measured_gain": None,
    }
    return made | more


def test_what_cannot_be_predicted_is_no_prediction() -> None:
    record = empty_record()
    record["job"] |= {"trial_hash": "t", "dir": "d"}
    known = {"why": "w", "basis": "b", "same_work": True, "predicted_bounds": [1.0, 3.0]}
    record["diagnosis"]["advice"] = [
        known | {"override": "a=1", "predicted_gain": 2.0},
        known | {"override": "b=1", "predicted_gain": None},
    ]
    (found,) = predictions.of(record)
    assert (found["trial_hash"], found["override"], found["job"]) == ("t", "a=1", "d")
    assert found["measured_gain"] is None


def test_a_later_one_replaces_it_but_not_its_measurement(tmp_path: Path) -> None:
    path = tmp_path / "out" / "advice.jsonl"
    predictions.keep(path, [one("t"), one("u")])
    predictions.keep(path, [one("t", gain=3.0)])
    assert [p["predicted_gain"] for p in predictions.load(path)] == [3.0, 2.0]
    predictions.keep(path, [one("t", gain=3.0, measured_gain=2.9)])
    predictions.keep(path, [one("t", gain=4.0)])
    first, _ = predictions.load(path)
    assert (first["predicted_gain"], first["measured_gain"]) == (3.0, 2.9)


def test_a_line_cut_short_costs_that_line(tmp_path: Path) -> None:
    path = tmp_path / "advice.jsonl"
    predictions.keep(path, [one("t"), one("u")])
    path.write_text(path.read_text()[:-30] + '\n[1, 2]\n{"a": 1}\nnothing\n')
    assert [p["trial_hash"] for p in predictions.load(path)] == ["t"]


def test_nothing_to_keep_makes_no_file(tmp_path: Path) -> None:
    predictions.keep(tmp_path / "advice.jsonl", [])
    assert list(tmp_path.iterdir()) == []


def test_commands_that_end_together_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "advice.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: predictions.keep(path, [one(str(i))]), range(40)))
    assert {p["trial_hash"] for p in predictions.load(path)} == set(map(str, range(40)))


def test_the_track_record() -> None:
    assert predictions.track_record([one("t")]) is None
    done = [
        one("t", gain=2.0, measured_gain=2.0),
        one("u", gain=2.2, measured_gain=2.0),
        one("v", gain=2.0, measured_gain=8.0),
        one("w"),
    ]
    known = predictions.track_record(done)
    assert known == {"checked": 3, "median_error": pytest.approx(0.1), "within": 2}
