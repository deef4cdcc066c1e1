"""A few bad command lines as a user types them: the installed command, in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bad_input.conftest import problems_of
from tests.conftest import Command

PACELINE = [str(Path(sys.executable).with_name("paceline"))]

CASES = {
    "hydra refuses": (["compile=nope", "run.stepz=3"], 2),
    "types": (["run.steps=abc", "strict=3"], 2),
    "a target": (["model._target_=mine.Mine"], 1),
    "a rule": (["strategy=single", "launch.nproc=2", "run.seed=-1"], 2),
    "a plan": (["plan=true", "run.steps=0"], 1),
    "a shown config": (["--cfg", "job", "modle=gpt"], 1),
    "a sweep that hydra refuses": (["-m", "compile=off,nope", "run.stepz=3"], 2),
    "a sweep with a wrong cell": (["-m", "run.steps=20,abc"], 1),
    "a sweep of what can't be swept": (["-m", "strict=true,false"], 1),
    "a plan of a sweep": (["-m", "run.seed=1,x", "plan=true"], 1),
    "multirun by a key": (["hydra.mode=MULTIRUN", "run.steps=20,abc"], 1),
    "two commands": (["--cfg", "job", "-m"], 1),
}


@pytest.mark.parametrize(("typed", "problems"), CASES.values(), ids=CASES)
def test_refused(command: Command, typed: list[str], problems: int) -> None:
    done = command(*typed, program=PACELINE)
    assert done.code == 2, done.err
    assert done.out == ""
    assert len(problems_of(done.err)) == problems
    assert not list(command.cwd.iterdir())
    command.assert_nothing_left(within_s=0)


@pytest.mark.parametrize("typed", [["--nope"], ["--cfg", "nope"], ["--cfg", "job", "--info"]])
def test_a_wrong_option(command: Command, typed: list[str]) -> None:
    done = command(*typed, program=PACELINE)
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert done.err.rstrip().splitlines()[-1].strip(" -")
    assert not list(command.cwd.iterdir())


@pytest.mark.parametrize("typed", [["compare"], ["report", "nowhere"], ["status", "--nope"]])
def test_a_wrong_sub_command(command: Command, typed: list[str]) -> None:
    done = command(*typed, program=PACELINE)
    assert (done.code, done.out) == (2, "")
    assert done.err and "Traceback" not in done.err
    assert not list(command.cwd.iterdir())
