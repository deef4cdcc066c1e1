"""Sweeps that can't run: refused before the first cell, with no directory left; and bad places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_input.conftest import options

Refuse = Callable[..., list[str]]


def test_all_problems_of_a_sweep_at_once(refuse: Refuse) -> None:
    assert refuse("-m", "compile=off,nope", "run.stepz=3") == [
        f"compile=nope: no such option; there are: {options('compile')}",
        "run.stepz=3: no such key in run; did you mean steps?",
    ]


def test_options_may_stand_after_overrides(refuse: Refuse) -> None:
    assert len(refuse("compile=off,nope", "-m", "run.stepz=3")) == 2


def test_one_cell_has_a_wrong_type(refuse: Refuse) -> None:
    assert refuse("-m", "run.steps=20,abc") == [
        "run.steps=abc: expected int, got str; give a whole number"
    ]


def test_wrong_values_of_several_swept_keys(refuse: Refuse) -> None:
    problems = refuse("-m", "run.steps=20,1.5", "optimizer.lr=0.1,-1", "model.heads=4,3,x")
    assert sorted(p.partition(": ")[0] for p in problems) == [
        "model.heads=x",
        "model.width=128",
        "optimizer.lr=-1",
        "run.steps=1.5",
    ]


@pytest.mark.parametrize(
    "typed", ["strict=true,false", "plan=true,false", "sweep.on_failure=stop,continue"]
)
def test_a_key_outside_the_identity(refuse: Refuse, typed: str) -> None:
    (problem,) = refuse("-m", typed)
    key = typed.partition("=")[0]
    assert problem.startswith(f"{key}: can't be swept, it is no part of a cell's identity; set it")


def test_hydras_own_keys_are_not_swept(refuse: Refuse) -> None:
    assert refuse("-m", "hydra.run.dir=a,b") == [
        "hydra.run.dir=a,b: Hydra's own settings can't be swept; give one value"
    ]


def test_a_sweep_without_a_list(refuse: Refuse) -> None:
    (problem,) = refuse("-m", "run.steps=interval(1,3)")
    assert problem.endswith("has no list of values; write run.steps=A,B or range(START,STOP)")


def test_a_key_that_one_option_lacks(refuse: Refuse) -> None:
    assert refuse("-m", "model=gpt,mlp", "model.layers=3") == [
        "model.layers=3: no such key in model (model=mlp); there are: hidden, inputs, outputs"
    ]


def test_a_broken_rule_is_no_problem_of_a_sweep(refuse: Refuse) -> None:
    # the cell would be skipped; what refuses the sweep is the key
    assert len(refuse("-m", "strategy=single,ddp", "launch.nproc=2", "run.stepz=3")) == 1


def test_a_sweep_has_many_configs(refuse: Refuse) -> None:
    (problem,) = refuse("-m", "--cfg", "job")
    assert problem.startswith("-m together with --cfg: a sweep has many configs; leave out one")


def test_a_group_is_deleted(refuse: Refuse) -> None:
    (problem,) = refuse("-m", "~strategy", "run.seed=1,2")
    assert problem == "strategy: missing, every job needs it; choose an option: strategy=OPTION"


class TestPlaces:
    """Directories that can't be made."""

    def test_of_a_run(self, refuse: Refuse) -> None:
        (problem,) = refuse("hydra.run.dir=there/job", files={"there": "a file"})
        assert problem.startswith("hydra.run.dir=")
        assert problem.endswith("/there is a file; choose another directory")

    def test_of_a_sweep(self, refuse: Refuse) -> None:
        typed = ["-m", "hydra.sweep.dir=there/sweep", "run.seed=1,x"]
        problems = refuse(*typed, files={"there": "a file"})
        assert [p.partition("=")[0] for p in problems] == ["run.seed", "hydra.sweep.dir"]

    def test_with_a_long_name(self, refuse: Refuse) -> None:
        (problem,) = refuse(f"hydra.run.dir={'x' * 300}")
        assert "a name in it is longer than 255 bytes; choose a shorter one" in problem

    def test_that_is_not_resolved(self, refuse: Refuse) -> None:
        assert refuse("hydra.run.dir=${nope}", "run.seed=-1") == [
            "run.seed=-1: give 0 or more",
            "hydra.run.dir: Interpolation key 'nope' not found; give a path",
        ]

    def test_that_can_not_be_written(self, refuse: Refuse, tmp_path: Path) -> None:
        closed = tmp_path / "closed"
        closed.mkdir(mode=0o500)
        try:
            (closed / "probe").touch()
        except PermissionError:
            (problem,) = refuse(f"hydra.run.dir={closed}/job")
            assert problem.endswith(f"{closed} can't be written; choose another directory")
        else:
            pytest.skip("this user may write anywhere")
