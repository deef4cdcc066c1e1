"""A sweep of real jobs: fresh processes for each cell, failures are rows, a rerun does the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import TINY, Command
from tests.swept import Swept, sweep

pytestmark = pytest.mark.distributed

MINE = '''
import os
from pathlib import Path

from torch import nn


class Model(nn.Module):
    """Raises in the forward of step `at`, on rank 1 only, until there is a file `mended`."""

    def __init__(self, inputs, hidden, outputs, at):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)
        self.at, self.step = at, 0

    def forward(self, x):
        if self.step == self.at and os.environ["RANK"] == "1" and not Path("mended").exists():
            raise ValueError("no more of this")  # here
        self.step += self.training
        return self.head(x)
'''
SWEEP = [*TINY, "strategy=ddp", "model._target_=mine.Model"]


@pytest.fixture(scope="module")
def broken(module_command: Command) -> Swept:
    (module_command.cwd / "mine.py").write_text(MINE)
    return sweep(module_command, *SWEEP, "+model.at=100,3,101")


@pytest.fixture(scope="module")
def mended(broken: Swept, module_command: Command) -> Swept:
    (module_command.cwd / "mended").touch()
    return sweep(module_command, *SWEEP, "+model.at=100,3,101")


class TestAFailingCell:
    """A model that raises at step 3 on rank 1 only."""

    def test_exit_code_is_1(self, broken: Swept) -> None:
        assert broken.done.code == 1, broken.done.err

    def test_it_names_rank_phase_and_step(self, broken: Swept) -> None:
        status = broken.cell("+model.at=3")["status"]
        assert (status["state"], status["kind"], status["exit_code"]) == ("failed", "error", 1)
        assert (status["rank"], status["phase"], status["step"]) == (1, "forward", 3)

    def test_its_traceback_ends_in_the_users_line(self, broken: Swept) -> None:
        *_, where, line, error = [
            x.strip()
            for x in broken.cell("+model.at=3")["status"]["traceback"].splitlines()
            if x.strip("^ ")
        ]
        assert "mine.py" in where
        assert line == 'raise ValueError("no more of this")  # here'
        assert error == "ValueError: no more of this"

    def test_the_message_has_the_type_and_labels_the_peers(self, broken: Swept) -> None:
        first, peers = broken.cell("+model.at=3")["status"]["message"].splitlines()
        assert first == "ValueError: no more of this"
        assert peers == "rank 0: terminated because of rank 1"

    def test_each_rank_left_its_own_account(self, mended: Swept) -> None:
        log = Path(mended.cell("+model.at=3")["job"]["dir"]) / "attempts/001/log"
        accounts = [json.loads((log / f"rank{r}.failure.json").read_text()) for r in (0, 1)]
        assert [a["communication"] for a in accounts] == [True, False]

    def test_the_other_cells_completed(self, broken: Swept) -> None:
        states = [broken.cell(f"+model.at={n}")["status"]["state"] for n in (100, 3, 101)]
        assert states == ["completed", "failed", "completed"]

    def test_it_is_a_row_of_the_table(self, broken: Swept) -> None:
        failed = broken.row("3")
        assert (failed["state"], failed["kind"]) == ("failed", "error")
        assert (failed["sustained_units_per_s"], failed["verdict"]) == (None, "invalid")
        assert "no more of this" in failed["note"]

    def test_the_table_on_the_screen_lists_it(self, broken: Swept) -> None:
        lines = broken.done.out.splitlines()
        (line,) = [x for x in lines if x.startswith("failed  model.at=3")]
        assert "ValueError: no more of this" in line


class TestTheSameSweepAgain:
    """After the cause was removed."""

    def test_it_succeeds(self, mended: Swept) -> None:
        assert mended.done.code == 0, mended.done.err
        assert "3 cells, 1 to run, 2 done" in mended.done.out

    def test_only_the_failed_cell_runs_and_the_baseline_beside_it(
        self, broken: Swept, mended: Swept
    ) -> None:
        failed = broken.cell("+model.at=3")["job"]["name"]
        baseline = broken.cell("+model.at=100")["job"]["name"]
        assert set(mended.files) - set(broken.files) == {f"{baseline}.1"}
        changed = {n for n in broken.files if mended.files[n] != broken.files[n]}
        assert changed == {failed}
        assert mended.done.out.count("/2] ") == 2

    def test_the_failed_attempt_is_kept(self, broken: Swept, mended: Swept) -> None:
        where = Path(mended.cell("+model.at=3")["job"]["dir"])
        assert (where / "attempts/001/result.json").read_bytes() == broken.files[where.name]

    def test_it_is_compared_with_the_baseline_beside_it(self, mended: Swept) -> None:
        assert sorted(r["job"]["rerun"] for r in mended.records) == [0, 0, 1, 1]
        assert mended.row("3")["ratio_to_baseline"] is not None

    def test_once_more_there_is_nothing_to_do(self, mended: Swept, module_command: Command) -> None:
        once_more = sweep(module_command, *SWEEP, "+model.at=100,3,101")
        assert once_more.done.code == 0, once_more.done.err
        assert "3 cells, 0 to run, 3 done" in once_more.done.out
        assert once_more.files == mended.files


def test_a_sweep_stops_at_the_first_failure_if_told_to(command: Command) -> None:
    (command.cwd / "mine.py").write_text(MINE)
    swept = sweep(command, *SWEEP, "+model.at=3,100,101", "sweep.on_failure=stop")
    assert swept.done.code == 1, swept.done.err
    assert [r["state"] for r in swept.table["rows"]] == ["failed", "pending", "pending"]
    assert [r["note"] for r in swept.table["rows"][1:]] == ["not run"] * 2
    assert swept.done.out.count("not run") >= 2
    assert len(swept.files) == 1
