"""checkpoint=sync: what has a step's name is whole, and a restored state is the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.checkpoint.sync import Sync, SyncCheckpoint
from paceline.comm_hook.none import Plain
from paceline.precision.full import FullPrecision
from paceline.types import CheckpointError, Context, Run, TrainState, World
from tests import ranks

WORLD = World(0, 0, 0, 1, torch.device("cpu"))


class Position:
    """A data source that knows where it is."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def state(seed: int) -> TrainState:
    torch.manual_seed(seed)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    data: Any = Position(seed)
    return TrainState(model, optimizer, scheduler, FullPrecision(), data, Plain())


def train(made: TrainState, steps: int) -> None:
    for _ in range(steps):
        made.optimizer.zero_grad()
        made.model(torch.rand(3, 4)).square().sum().backward()
        made.optimizer.step()
        made.scheduler.step()
        made.step += 1
        made.history.setdefault("loss", []).append(float(made.step))


def checkpoint(directory: Path, keep_last: int = 2, resume: Any = "auto") -> SyncCheckpoint:
    run = Run(1, 1, 0, None, 0, "cpu")
    context = Context(WORLD, run, directory, lambda node: node)
    return Sync(every_steps=3, keep_last=keep_last, resume=resume).open(context)


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    unbroken = state(0)
    train(unbroken, 3)
    assert checkpoint(tmp_path).save(unbroken, 3, now=False)
    train(unbroken, 4)

    restored = state(1)
    train(restored, 2)  # something else entirely
    assert checkpoint(tmp_path).load(restored) == 3
    assert restored.history == {"loss": [1.0, 2.0, 3.0]}
    train(restored, 4)
    for name, value in unbroken.model.state_dict().items():
        assert torch.equal(value, restored.model.state_dict()[name]), name
    assert restored.scheduler.get_last_lr() == unbroken.scheduler.get_last_lr()
    assert restored.step == 7
    assert restored.data.state_dict() == {"at": 0}


def test_it_saves_when_due_or_told_to(tmp_path: Path) -> None:
    made, saver = state(0), checkpoint(tmp_path)
    assert [s for s in range(1, 8) if saver.save(made, s, now=s == 7)] == [3, 6, 7]
    assert not saver.save(made, 7, now=True), "the same step twice"
    report = saver.report()["saves"]
    assert [s["step"] for s in report] == [3, 6, 7]
    assert all(s["bytes"] > 0 and s["blocked_s"] > 0 for s in report)


def test_only_the_last_ones_are_kept_and_nothing_half_written_stays(tmp_path: Path) -> None:
    made, saver = state(0), checkpoint(tmp_path, keep_last=2)
    for step in (3, 6, 9):
        saver.save(made, step, now=False)
    left = sorted(p.name for p in (tmp_path / "checkpoint").iterdir())
    assert left == ["step_00000006", "step_00000009"]


def test_a_write_that_was_cut_off_is_never_seen(tmp_path: Path) -> None:
    made = state(0)
    checkpoint(tmp_path).save(made, 3, now=False)
    torn = tmp_path / "checkpoint" / ".staging_00000006"
    torn.mkdir()
    (torn / "state.pt").write_bytes(b"half")
    assert checkpoint(tmp_path).load(state(1)) == 3


def test_required_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"resume=required.*no committed"):
        checkpoint(tmp_path, resume="required").load(state(0))


def test_a_fresh_start_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checkpoint(tmp_path).load(state(0)) == 0
    assert "fresh start" in capsys.readouterr().out


def test_resume_off_leaves_what_is_there_alone(tmp_path: Path) -> None:
    checkpoint(tmp_path).save(state(0), 3, now=False)
    assert checkpoint(tmp_path, resume="off").load(state(1)) == 0


@pytest.mark.distributed
def test_another_number_of_ranks_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path).save(state(0), 3, now=False)
    for said in ranks.run(_refused, 2, tmp_path):
        assert "saved by 1 ranks, this job has 2" in said


def _refused(world: World, directory: Path) -> str:
    reader = SyncCheckpoint(Sync(3, 2, "auto"), directory / "checkpoint", world)
    with pytest.raises(CheckpointError) as raised:
        reader.load(state(0))
    return str(raised.value)


def test_it_loads_without_paceline_and_without_pickled_code(tmp_path: Path) -> None:
    checkpoint(tmp_path).save(state(0), 3, now=False)
    path = tmp_path / "checkpoint" / "step_00000003" / "state.pt"
    assert set(torch.load(path, weights_only=True)) >= {"model", "optimizer", "scheduler", "ranks"}


@pytest.mark.parametrize("at", [0.3, 0.5, 0.7])
def test_damage_is_found_and_named(tmp_path: Path, at: float) -> None:
    made = state(0)
    made.model.register_buffer("table", torch.rand(64, 1024))
    checkpoint(tmp_path).save(made, 3, now=False)
    path = tmp_path / "checkpoint" / "step_00000003" / "state.pt"
    raw = bytearray(path.read_bytes())
    middle = int(at * len(raw))
    raw[middle : middle + 4096] = bytes(255 - byte for byte in raw[middle : middle + 4096])
    path.write_bytes(raw)
    loaded = state(1)
    loaded.model.register_buffer("table", torch.zeros(64, 1024))
    with pytest.raises(CheckpointError, match=r"state\.pt is damaged: \['model'\]\['table'\]"):
        checkpoint(tmp_path).load(loaded)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path).save(state(0), 3, now=False)
    path = tmp_path / "checkpoint" / "step_00000003" / "state.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"state\.pt can't be read"):
        checkpoint(tmp_path).load(state(1))
