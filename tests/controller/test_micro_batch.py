"""hydra/sweeper=micro_batch: running out of memory is an answer, and the search ends with one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf

from paceline.__main__ import config_dir
from paceline.controller.micro_batch import (
    Candidate,
    Search,
    candidates,
    fastest,
    first_that_fits,
)
from paceline.types import Failed
from tests.conftest import TINY, Command, Done

SEARCH = ["-m", "hydra/sweeper=micro_batch"]

LIMITED = '''
import resource
from pathlib import Path

from paceline.model.mlp import Mlp, MlpModel


class Model(MlpModel):
    """An MLP whose process may take `room_mib` more than it has when the model is built."""

    def __init__(self, room_mib, broken_at, **fields):
        super().__init__(Mlp(**fields))
        self.broken_at = broken_at
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + room_mib * 2**20,) * 2)

    def forward(self, inputs):
        if len(inputs) == self.broken_at:
            raise ValueError("not for lack of memory")
        return super().forward(inputs)
'''

REFUSED = '''
import time

import torch

from paceline.model.mlp import Mlp, MlpModel


class Model(MlpModel):
    """Takes 30 ms a micro-batch, and more memory than there is for one above `most`."""

    def __init__(self, most, **fields):
        super().__init__(Mlp(**fields))
        self.most = most

    def forward(self, inputs):
        if len(inputs) > self.most:
            torch.empty(1 << 50)
        time.sleep(0.03)
        return super().forward(inputs)
'''


def search(command: Command, source: str, *words: str) -> Done:
    (command.cwd / "mine.py").write_text(source)
    own = ["model._target_=mine.Model", "hydra.sweep.dir=outputs/sweeps/s"]
    return command(*SEARCH, *words, *own)


def states(done: Done) -> dict[int, tuple[str, str | None]]:
    """Accumulation steps of each row of the table -> (state, kind)."""
    rows = done.table()["rows"]
    return {int(r["overrides"]["run.accumulation_steps"]): (r["state"], r["kind"]) for r in rows}


OOM, COMPLETED = ("failed", "oom"), ("completed", None)


@pytest.fixture(scope="module")
def largest(tmp_path_factory: pytest.TempPathFactory) -> Done:
    command = Command(tmp_path_factory.mktemp("largest"))
    words = ["model.inputs=8", "model.hidden=[32768]", "+model.room_mib=512"]
    words += ["+model.broken_at=1024", "run.steps=2", "measure.warmup_steps=1"]
    words += ["data=synthetic", "data.shape=[8]", "data.global_batch_size=2048"]
    own = [w for w in TINY if not w.startswith("data")]
    done = search(command, LIMITED, *own, *words, "run.eval_batches=0")
    command.assert_nothing_left()
    return done


@pytest.mark.slow
class TestTheLargestThatFits:
    """A layer's output is 256 MiB for 2048 samples at once, and a step keeps several such: with
    512 MiB of room that can't be, an eighth of it can. 1024 samples fail for another reason."""

    def test_all_at_once_is_out_of_memory(self, largest: Done) -> None:
        assert states(largest)[1] == OOM
        (record,) = [
            r
            for r in largest.jobs("outputs/sweeps/*")
            if "run.accumulation_steps=1" in r["job"]["overrides"]
        ]
        what, way = record["status"]["message"].splitlines()
        assert "can't allocate memory" in what
        assert "a larger run.accumulation_steps" in way
        assert record["status"]["phase"] in ("forward", "backward")

    def test_the_search_goes_on_to_the_border(self, largest: Done) -> None:
        found = states(largest)
        fits = [n for n, state in found.items() if state == COMPLETED]
        assert fits and set(found) <= {1, 2, 4, 8, 16, 32, 64, 128}
        assert min(fits) in (4, 8, 16, 32)
        assert found[min(fits) // 2] != COMPLETED

    def test_another_failure_is_a_row_and_is_told(self, largest: Done) -> None:
        assert states(largest)[2] == ("failed", "error")
        assert largest.code == 1
        last = largest.out.splitlines()[-1]
        assert last.startswith("failed, but not for lack of memory: run.accumulation_steps=2 (err")

    def test_the_answer_stands_after_the_table(self, largest: Done) -> None:
        fits = min(n for n, state in states(largest).items() if state == COMPLETED)
        line = f"largest that fits: run.accumulation_steps={fits} (micro-batch {2048 // fits} a"
        assert largest.out.splitlines()[-2].startswith(line)

    def test_each_is_tried_once(self, largest: Done) -> None:
        tries = [line for line in largest.out.splitlines() if line.startswith("trying ")]
        assert len(tries) == len(set(tries)) == len(states(largest))


@pytest.fixture(scope="module")
def ranked(module_command: Command) -> Done:
    words = ["+model.most=2", "data.global_batch_size=4", "run.steps=3", "measure.warmup_steps=1"]
    words += ["repeat=range(2)", "hydra.sweeper.goal=fastest"]
    return search(module_command, REFUSED, *TINY, *words)


@pytest.mark.slow
class TestTheFastest:
    """Four samples at once are too many; each micro-batch takes the same time."""

    KNOWN = (Candidate(1, 4), Candidate(2, 2), Candidate(4, 1))

    def test_out_of_memory_is_a_row_and_no_failure(self, ranked: Done) -> None:
        assert ranked.code == 0, (ranked.out, ranked.err)
        assert states(ranked) == {1: OOM, 2: COMPLETED, 4: COMPLETED}

    def test_they_are_compared_with_the_largest_that_ran(self, ranked: Done) -> None:
        verdicts = [(r["verdict"], r["repeats"]) for r in ranked.table()["rows"]]
        assert verdicts[:2] == [("invalid", 0), ("baseline", 2)]

    def test_the_answer_is_as_sure_as_the_table(self, ranked: Done) -> None:
        best, other = self.KNOWN[1:]
        said = {  # "faster" on a machine that was busy in the right moments
            "slower": [f"fastest: {best}"],
            "faster": [f"fastest: {other}"],
        }
        verdict, answer = ranked.table()["rows"][2]["verdict"], ranked.out.splitlines()[-1]
        pairs = ((best, 4), (other, 2))  # the one with the higher rate stands first
        unsure = [f"fastest: can't tell {a} from {b}; add repeat=range(4)" for a, b in pairs]
        assert answer in said.get(verdict, unsure)

    def test_one_repeat_ranks_nothing(self, ranked: Done, tmp_path: Path) -> None:
        one = tmp_path / "one"
        shutil.copytree(ranked.cwd / "outputs/sweeps/s", one, ignore=shutil.ignore_patterns("*-r1"))
        said = fastest(one, self.KNOWN)
        assert said.startswith("fastest: can't tell run.accumulation_steps=")
        assert said.endswith("; add repeat=range(3)")

    def test_repeats_are_the_outermost_loop(self, ranked: Done) -> None:
        sweep = json.loads((ranked.cwd / "outputs/sweeps/s/sweep.json").read_text())
        assert len(sweep["cells"]) == 6
        jobs = sorted((r["job"] for r in ranked.jobs("outputs/sweeps/*")), key=started)
        assert [j["repeat"] for j in jobs] == [0, 0, 0, 1, 1, 1]


def started(job: dict[str, str]) -> str:
    return job["started_at"]


def launch(*kinds: str | None) -> Callable[[Sequence[Candidate]], list[JobReturn]]:
    """One job a candidate of accumulation 1, 2, ...: failed by that kind, or with a rate."""

    def returned(candidate: Candidate) -> JobReturn:
        kind = kinds[candidate.accumulation_steps.bit_length() - 1]
        done = JobReturn(status=JobStatus.COMPLETED)
        done.return_value = 100.0 if kind is None else Failed("failed", kind, "why")
        return done

    return lambda tried: list(map(returned, tried))


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (("oom", "oom"), ["no micro-batch fits, not even run.accumulation_steps=2 (micro-batch 4"]),
        (("oom", None), ["largest that fits: run.accumulation_steps=2 (micro-batch 4 a rank)"]),
        (
            ("error", "oom"),
            [
                "no answer: not one try ran to its end",
                "failed, but not for lack of memory: run.accumulation_steps=1 (error)",
            ],
        ),
    ],
)
def test_what_is_said_in_the_end(
    kinds: tuple[str | None, ...],
    said: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    search = Search([Candidate(1, 8), Candidate(2, 4)], launch(*kinds))
    search.largest()
    capsys.readouterr()
    search.conclude("largest", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


def test_candidates_are_the_even_shares_of_all_ranks() -> None:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        words = ["strategy=ddp", "launch.nproc=2", "data.global_batch_size=12"]
        found = candidates(compose("config", words, return_hydra_config=True))
    assert found == [Candidate(1, 6), Candidate(2, 3), Candidate(3, 2), Candidate(6, 1)]


@pytest.mark.parametrize("number", range(1, 30))
def test_the_border_is_found_with_few_tries(number: int) -> None:
    for border in range(number + 1):
        asked: list[int] = []

        def fits(at: int, border: int = border, asked: list[int] = asked) -> bool:
            asked.append(at)
            return at >= border

        found = first_that_fits(number, fits)
        assert found == (border if border < number else None)
        assert len(asked) == len(set(asked)) <= 2 * number.bit_length()
        if border < number:  # the first that fits was tried, and so was the one before it
            assert {border, border - 1} - {-1} <= set(asked)
            assert len([a for a in asked if a >= border]) <= 1 + border.bit_length()
