"""What ranks print and warn: rank 0 on the screen, each other in its file, warnings of all once."""

from __future__ import annotations

import pytest

from tests.conftest import TINY, Command, Done

pytestmark = pytest.mark.distributed

TALKATIVE = """
import logging, os, warnings

from torch import nn

class Model(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        rank = os.environ["RANK"]
        self.head = nn.Linear(inputs, outputs)
        print(f"a plain line of rank {rank}")
        logging.getLogger("mine").info(f"an info of rank {rank}")
        logging.getLogger("made.early").error(f"an error of rank {rank}")
        warnings.warn("the same warning everywhere")

    def forward(self, x):
        return self.head(x)
"""


@pytest.fixture(scope="module")
def talk(module_command: Command) -> Done:
    (module_command.cwd / "mine.py").write_text(TALKATIVE)
    done = module_command(*TINY, "strategy=ddp", "model._target_=mine.Model")
    assert done.code == 0, done.err
    return done


def log(done: Done, rank: int) -> str:
    (path,) = done.cwd.glob(f"outputs/jobs/*/log/rank{rank}.log")
    return path.read_text()


@pytest.mark.parametrize("line", ["a plain line of rank 0", "an info of rank 0"])
def test_lines_of_rank_0_reach_the_screen_and_its_log_once(talk: Done, line: str) -> None:
    assert talk.out.count(line) == 1
    assert log(talk, 0).count(line) == 1
    assert line not in log(talk, 1)


@pytest.mark.parametrize("line", ["a plain line of rank 1", "an info of rank 1"])
def test_plain_lines_of_the_others_stay_in_their_log(talk: Done, line: str) -> None:
    assert line not in talk.out + talk.err
    assert log(talk, 1).count(line) == 1
    assert line not in log(talk, 0)


def test_a_warning_of_both_ranks_is_shown_once_with_a_rank(talk: Done) -> None:
    (line,) = [x for x in talk.out.splitlines() if "the same warning everywhere" in x]
    assert line.startswith(("[rank 0] WARNING", "[rank 1] WARNING"))
    assert [log(talk, r).count("the same warning everywhere") for r in (0, 1)] == [1, 1]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_any_rank_is_shown_with_its_rank(talk: Done, rank: int) -> None:
    (line,) = [x for x in talk.out.splitlines() if f"an error of rank {rank}" in x]
    assert line.startswith(f"[rank {rank}] ERROR made.early")


def test_nothing_else_is_on_standard_error(talk: Done) -> None:
    assert talk.err == ""
