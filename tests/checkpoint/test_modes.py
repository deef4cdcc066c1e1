"""checkpoint=sync, dcp, async: what has a name is whole, and a restored state is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from paceline.checkpoint.reading import read_whole
from paceline.types import CheckpointError
from tests.checkpoint.training import MODES, WORK, differing, opened, train, training

EVERY = pytest.mark.parametrize("mode", list(MODES))


def saved(mode: str, directory: Path, steps: int = 3, **settings: Any) -> Any:
    """A training of `steps` steps, saved as it goes."""
    state, saver = training(0), opened(mode, directory, **settings)
    train(state, steps, saver)
    saver.finish()
    return state


def steps_in(directory: Path, *below: str) -> list[str]:
    where = directory.joinpath("checkpoint", *below)
    return sorted(p.name for p in where.iterdir() if p.name.startswith("step_"))


@EVERY
def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path, mode: str) -> None:
    unbroken = saved(mode, tmp_path)
    train(unbroken, 4)
    rates = unbroken.scheduler.get_last_lr()

    restored = training(1)
    train(restored, 2)  # something else entirely
    assert opened(mode, tmp_path).load(restored) == 3
    assert len(restored.history["loss"]) == 3
    train(restored, 4)
    assert differing(restored, unbroken) == []
    assert restored.history == unbroken.history
    assert restored.scheduler.get_last_lr() == rates
    assert restored.step == 7
    assert restored.data.state_dict() == {"at": 0}


@pytest.mark.parametrize("writes", list(MODES))
@pytest.mark.parametrize("reads", list(MODES))
def test_each_reads_the_others(tmp_path: Path, writes: str, reads: str) -> None:
    made, read = saved(writes, tmp_path), training(1)
    assert opened(reads, tmp_path).load(read) == 3
    assert differing(read, made) == []


@EVERY
def test_it_saves_when_due_or_told_to(tmp_path: Path, mode: str) -> None:
    state, saver = training(0), opened(mode, tmp_path, keep_last=9)
    for step in range(1, 8):
        train(state, 1)
        saver.save(state, step, now=step == 7)
    saver.save(state, 7, now=True)  # the same step twice
    saver.finish()
    report = saver.report()["saves"]
    assert [s["step"] for s in report] == [3, 6, 7]
    assert all(s["bytes"] > 0 and s["blocked_s"] > 0 for s in report)
    assert all(s["durable_s"] is not None and s["state"] == "committed" for s in report)
    assert saver.report()["host_peak_gib"] > 0


@EVERY
def test_only_what_is_kept_stays_and_nothing_half_written(tmp_path: Path, mode: str) -> None:
    saved(mode, tmp_path, steps=24, keep_last=2, keep_every=9)
    left = {p.name for p in (tmp_path / "checkpoint").iterdir()}
    assert {n for n in left if n.startswith("step")} == {
        "step_00000009",
        "step_00000018",
        "step_00000021",
        "step_00000024",
    }
    for name in (".staging", ".deleting"):
        assert not list((tmp_path / "checkpoint").glob(f"{name}/*"))


@EVERY
def test_a_write_that_was_cut_off_is_never_seen_and_goes(tmp_path: Path, mode: str) -> None:
    saved(mode, tmp_path)
    torn = tmp_path / "checkpoint" / ".staging" / "step_00000006"
    torn.mkdir(parents=True)
    (torn / "state.pt").write_bytes(b"half")
    state, saver = training(1), opened(mode, tmp_path)
    assert saver.load(state) == 3
    train(state, 3, saver)
    saver.finish()
    assert steps_in(tmp_path) == ["step_00000003", "step_00000006"]
    assert not list((tmp_path / "checkpoint" / ".staging").iterdir())


class TestResume:
    def test_required_without_a_checkpoint_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"resume=required.*no committed"):
            opened("sync", tmp_path, resume="required").load(training(0))

    def test_a_fresh_start_is_said(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert opened("sync", tmp_path).load(training(0)) == 0
        assert "fresh start" in capsys.readouterr().out

    def test_off_starts_afresh_and_keeps_the_other_history_out_of_the_way(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        saved("sync", tmp_path, steps=6)
        assert opened("sync", tmp_path, resume="off").load(training(1)) == 0
        assert steps_in(tmp_path) == []
        assert steps_in(tmp_path, "superseded") == ["step_00000003", "step_00000006"]
        assert "step_00000006 was set aside" in capsys.readouterr().out

    def test_off_is_for_the_first_start_not_for_one_after_a_failure(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        saved("sync", tmp_path, resume="off")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        assert opened("sync", tmp_path, resume="off").load(training(1)) == 3

    @pytest.mark.parametrize("below", ["", "checkpoint", "checkpoint/step_00000006"])
    def test_a_path_is_where_a_job_without_one_of_its_own_begins(
        self, tmp_path: Path, below: str
    ) -> None:
        made = saved("dcp", tmp_path / "one", steps=6)
        there = tmp_path / "one" / below
        state, saver = training(1), opened("sync", tmp_path / "two", resume=str(there))
        assert saver.load(state) == 6
        assert differing(state, made) == []
        assert steps_in(tmp_path / "one") == ["step_00000003", "step_00000006"]
        train(state, 3, saver)
        # stopped and started by the same command: its own is newer
        again = opened("sync", tmp_path / "two", resume=str(there))
        assert again.load(training(2)) == 9

    def test_a_path_that_is_none_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"nope does not exist; give a job's directory"):
            opened("sync", tmp_path, resume=str(tmp_path / "nope")).load(training(0))
        (tmp_path / "empty").mkdir()
        with pytest.raises(CheckpointError, match="empty holds no committed checkpoint"):
            opened("sync", tmp_path, resume=str(tmp_path / "empty")).load(training(0))

    def test_another_training_is_refused_by_the_keys_that_differ(self, tmp_path: Path) -> None:
        saved("dcp", tmp_path)
        other = WORK | {"work_hash": "x", "work": {"optimizer.lr": 0.2}}
        with pytest.raises(CheckpointError, match=r"of another training: optimizer\.lr differ"):
            opened("dcp", tmp_path, identity=other).load(training(0))


class TestWhatDoesNotFit:
    @EVERY
    def test_another_shape_is_named(self, tmp_path: Path, mode: str) -> None:
        saved(mode, tmp_path)
        other = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2))
        with pytest.raises(CheckpointError, match=r"0\.weight has shape \[6, 4\], \[7, 4\] here"):
            opened(mode, tmp_path).load(training(0, other))

    @EVERY
    def test_missing_and_unknown_parameters_are_named(self, tmp_path: Path, mode: str) -> None:
        saved(mode, tmp_path)
        other = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2))
        with pytest.raises(CheckpointError) as raised:
            opened(mode, tmp_path).load(training(0, other))
        assert "model: 1.weight is missing" in str(raised.value)
        assert "model: 2.weight isn't known here" in str(raised.value)

    def test_state_that_is_no_plain_value_is_refused_when_it_is_saved(self, tmp_path: Path) -> None:
        state, saver = training(0), opened("sync", tmp_path)
        state.data.state_dict = lambda: {"seen": {1, 2}}  # type: ignore[method-assign]
        with pytest.raises(CheckpointError, match=r"data\.seen is a set, which can't be saved"):
            train(state, 3, saver)
        assert saver.report()["saves"][-1]["state"] == "failed"


@EVERY
def test_settings_that_a_compiled_step_holds_as_tensors(tmp_path: Path, mode: str) -> None:
    """Saved as the numbers that they are; restored into the tensor that the step reads."""
    state, saver = training(0), opened(mode, tmp_path)
    for group in state.optimizer.param_groups:
        group["lr"] = torch.tensor(0.1, dtype=torch.float64)
    train(state, 3, saver)
    saver.finish()
    tree = read_whole(tmp_path / "checkpoint" / "step_00000003")
    assert tree["optimizer"]["param_groups"]["0"]["lr"] == 0.05
    again = training(1)
    held = again.optimizer.param_groups[0]["lr"] = torch.tensor(0.7, dtype=torch.float64)
    assert opened(mode, tmp_path).load(again) == 3
    assert again.optimizer.param_groups[0]["lr"] is held
    assert float(held) == 0.05
    plain = training(1)
    opened(mode, tmp_path).load(plain)
    assert plain.optimizer.param_groups[0]["lr"] == 0.05


class TestWithoutPaceline:
    def test_sync_is_one_file_of_tensors_and_plain_values(self, tmp_path: Path) -> None:
        made = saved("sync", tmp_path)
        path = tmp_path / "checkpoint" / "step_00000003" / "state.pt"
        tree = torch.load(path, weights_only=True)
        assert torch.equal(tree["model"]["0.weight"], made.model.state_dict()["0.weight"])
        assert tree["position"] == {"step": 3, "samples": 24}

    @pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
    @pytest.mark.parametrize("mode", ["dcp", "async"])
    def test_dcp_is_what_plain_dcp_reads(self, tmp_path: Path, mode: str) -> None:
        made = saved(mode, tmp_path)
        path = tmp_path / "checkpoint" / "step_00000003"
        dcp_to_torch_save(path, tmp_path / "whole.pt")
        tree = torch.load(tmp_path / "whole.pt", weights_only=True)
        assert torch.equal(tree["model"]["0.weight"], made.model.state_dict()["0.weight"])
        assert tree["position"] == {"step": 3, "samples": 24}


def test_a_manifest_says_what_there_is(tmp_path: Path) -> None:
    saved("dcp", tmp_path)
    path = tmp_path / "checkpoint" / "step_00000003"
    said = json.loads((path / "manifest.json").read_text())
    on_disk = {p.name: p.stat().st_size for p in path.iterdir() if p.name != "manifest.json"}
    assert {name: file["size"] for name, file in said["files"].items()} == on_disk
    assert said["world"] == {"world_size": 1}
    assert said["identity"] == WORK
