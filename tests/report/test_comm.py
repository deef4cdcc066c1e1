"""Communication in lines."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.record.schema import empty_record
from paceline.report.comm import lines, said_bytes


def record(**comm: Any) -> dict[str, Any]:
    made = empty_record()
    made["throughput"]["steps_measured"] = 100
    made["ledger"]["steady_wall_s"] = 10.0
    made["comm"] |= {
        "backend": "gloo",
        "collectives": {"all_reduce": 2, "all_gather": 1},
        "bytes_per_step": 602_140,
        "gradient_bytes_per_step": 602_132,
        "gradient_bytes_uncompressed": 1_204_264,
        **comm,
    }
    return made


def test_a_job_of_one_rank_says_nothing() -> None:
    assert lines(empty_record()) == []


def test_counts_bytes_and_what_the_hook_saves() -> None:
    ((label, text),) = lines(record())
    assert label == "comm"
    assert text == (
        "gloo: 2 all-reduce, 1 all-gather a step; each rank puts in 602 kB, gradients compressed "
        "2 times"
    )


def test_exposed_and_hidden_and_without() -> None:
    made = record(exposed_s=0.03, overlap_s=0.002)
    made["counter_runs"] = [
        {"name": "no_sync", "speedup": 1.4, "speedup_ci95": [1.3, 1.5], "units_per_s": 1.0}
    ]
    texts = [text for _, text in lines(made)]
    assert texts[1] == "30 ms exposed (30% of the step), 2 ms behind backward, by DDP's timers"
    assert texts[2] == "without it 1.400 times [1.300, 1.500] the rate"


@pytest.mark.parametrize("names", [None, [], ["a.weight"], ["a", "b", "c", "d"]])
def test_the_search_for_unused_parameters(names: list[str] | None) -> None:
    made = record(unused_in_some_step=names)
    made["counter_runs"] = [
        {"name": "unused_search", "speedup": 1.05, "speedup_ci95": None, "units_per_s": 1.0}
    ]
    said = [text for label, text in lines(made) if label == "search"]
    assert len(said) == (names is not None)
    if names == []:
        assert "strategy.find_unused_parameters=false does; without the search 1.050 t" in said[0]
    elif names:
        assert said[0].startswith(", ".join(names[:3]))
        assert said[0].endswith("went unused in some step: it is needed")
        assert ("and 1 more" in said[0]) == (len(names) == 4)


def test_a_straggler_has_a_line() -> None:
    made = record()
    made["diagnosis"] |= {"bound": "straggler", "evidence": ["rank 1 works 90 ms", "other"]}
    assert ("straggler", "rank 1 works 90 ms") in lines(made)


@pytest.mark.parametrize(
    ("number", "said"), [(999, "999 B"), (1000, "1 kB"), (6_624_256, "6.62 MB"), (3e9, "3 GB")]
)
def test_bytes(number: int, said: str) -> None:
    assert said_bytes(number) == said
