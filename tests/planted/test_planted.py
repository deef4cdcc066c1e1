"""The kit in small: one case of each kind, and advice that is typed as it stands."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import netns
from paceline.record import predictions
from tests.planted import advised
from tests.planted.__main__ import matrix, summary
from tests.planted.cases import KINDS, Case, case
from tests.planted.kit import Result, job, network, run

ENOUGH_KINDS = 11


def test_cases_are_told_by_kind_and_seed() -> None:
    cases = [case(kind, seed) for kind in KINDS for seed in range(15)]
    assert len(KINDS) >= ENOUGH_KINDS
    assert cases == [case(kind, seed) for kind in KINDS for seed in range(15)]
    assert len({tuple(one.words) for one in cases}) == len(cases)
    assert all(one.words[0] == "experiment=planted" and one.plants for one in cases)


def result(said: str, **gains: float) -> Result:
    return Result(Case("k", 0, [], []), said, None, {}, gains)


def test_the_truth_is_the_largest_gain() -> None:
    assert result("host", host=3.0, input=1.2).right
    assert not result("input", host=3.0, input=1.2).right
    assert not result("undetermined", host=3.0, input=1.2).right
    assert result("undetermined", host=1.9, input=1.8).right


def test_the_matrix_counts_them() -> None:
    results = [result("host", host=3.0), result("input", host=3.0), result("input", input=2.5)]
    lines = [line.split() for line in matrix(results).splitlines()]
    assert lines == [["truth", "host", "input"], ["host", "1", "1"], ["input", "0", "1"]]
    assert summary(results).startswith("2 of 3 right (66.7%); 0 undetermined")


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.distributed
def test_each_kind_is_told(tmp_path: Path) -> None:
    """One of each, of those whose largest gain is known to be that of the plant they are named for:
    `python -m tests.planted` measures it, here one is enough."""
    lacks = netns.missing()
    kinds = [kind for kind in KINDS if kind != "throttled_link" or lacks is None]

    def said(kind: str) -> tuple[str, str, str]:
        one, folder = case(kind, 5), tmp_path / kind
        folder.mkdir()
        with network(one.link_mbit) as prefix:
            record = job(one.words, folder, "said", prefix)
        return kind, one.plants[0], record["diagnosis"]["bound"]

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(said, kinds))
    assert [a for a in answers if a[1] != a[2]] == []
    whole = run(case("host_sync", 5), tmp_path / "whole")
    assert whole.truth == whole.said == "host"
    assert whole.true_share > 0.5


@pytest.mark.slow
@pytest.mark.alone
def test_advice_is_worth_what_it_says(tmp_path: Path) -> None:
    kept = tmp_path / "advice.jsonl"
    for kind in ("slow_dataset", "many_parameters"):
        done = advised.apply(case(kind, 5), tmp_path / kind, kept)
        assert done is not None
        assert done["measured_gain"] > 1.2
        low, high = done["predicted_bounds"]
        assert 0.7 * low < done["measured_gain"] < 1.3 * high
        shutil.rmtree(tmp_path / kind)
    known = predictions.track_record(predictions.load(kept))
    assert known is not None
    assert known["checked"] == 2
