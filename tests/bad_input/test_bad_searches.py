"""Ladders and micro-batch searches that can't run: refused before the first cell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Refuse = Callable[..., list[str]]

LADDER = ("-m", "hydra/sweeper=ladder")
SEARCH = ("-m", "hydra/sweeper=micro_batch")


def test_rungs_that_are_no_lists_of_overrides(refuse: Refuse) -> None:
    rungs = ["hydra.sweeper.rungs.bf16='precision=bf16'", "hydra.sweeper.rungs.fused=[3]"]
    rungs.append('+hydra.sweeper.rungs.x=["run.seed=1,2","repeat=3","strict=true","word"]')
    assert refuse(*LADDER, *rungs) == [
        "hydra.sweeper.rungs.bf16=precision=bf16: a rung is a list of overrides; write "
        'hydra.sweeper.rungs.bf16=["precision=bf16"]',
        "hydra.sweeper.rungs.fused=[3]: a rung is a list of overrides; write "
        'hydra.sweeper.rungs.fused=["compile=inductor"]',
        "hydra.sweeper.rungs.x: run.seed=1,2 has several values; give it one, or make two rungs",
        "hydra.sweeper.rungs.x: repeat is no part of a cell's identity, no rung can set it; "
        "leave it out, and give repeat on the command line",
        "hydra.sweeper.rungs.x: strict is no part of a cell's identity, no rung can set it; "
        "leave it out, and give strict on the command line",
        "hydra.sweeper.rungs.x: word is no override; write key=value or group=option",
    ]


def test_rungs_that_the_config_refuses(refuse: Refuse) -> None:
    rungs = [
        'hydra.sweeper.rungs.inductor=["run.steps=abc"]',
        'hydra.sweeper.rungs.bf16=["strategy=ddpp","run.stepz=3"]',
    ]
    first, second, third = refuse(*LADDER, *rungs)
    where = "hydra.sweeper.rungs.inductor: "
    assert first == where + "run.steps=abc: expected int, got str; give a whole number"
    assert second.startswith("hydra.sweeper.rungs.bf16: strategy=ddpp: no such option")
    where = "hydra.sweeper.rungs.bf16: "
    assert third == where + "run.stepz=3: no such key in run; did you mean steps?"


@pytest.mark.parametrize("sweeper", [LADDER, SEARCH])
def test_what_was_typed_is_told_as_in_any_sweep(refuse: Refuse, sweeper: tuple[str]) -> None:
    assert refuse(*sweeper, "run.stepz=3", "run.seed=-1") == [
        "run.stepz=3: no such key in run; did you mean steps?",
        "run.seed=-1: give 0 or more",
    ]


def test_everything_that_makes_no_search(refuse: Refuse) -> None:
    words = ["hydra.sweeper.goal=fast", "sweep.on_failure=stop", "run.accumulation_steps=2"]
    assert refuse(*SEARCH, *words, "precision=fp32,bf16", "repeat=range(2)") == [
        "hydra.sweeper.goal=fast: no such goal; did you mean fastest?",
        "sweep.on_failure=stop: this search goes on where memory ran out; leave it at continue",
        "run.accumulation_steps: it is what the search varies; leave it out",
        "precision: the search varies nothing but run.accumulation_steps and repeat; give "
        "precision one value, and search once for each",
    ]


def test_a_batch_that_the_ranks_can_not_share(refuse: Refuse) -> None:
    (problem,) = refuse(*SEARCH, "strategy=ddp", "launch.nproc=3", "data.global_batch_size=16")
    assert problem.startswith("data.global_batch_size=16: 3 ranks")


def test_data_without_a_global_batch(refuse: Refuse) -> None:
    mine = {
        "mine.py": "class Data:\n    pass\n",
        "conf/data/mine.yaml": "_target_: mine.Data\n",
    }
    assert refuse(*SEARCH, "--config-dir", "conf", "data=mine", files=mine) == [
        "data=mine: it has no data.global_batch_size that ranks could share; choose a data option "
        "that has one"
    ]
