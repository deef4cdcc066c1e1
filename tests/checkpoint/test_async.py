"""checkpoint=async: training goes on while a copy of its state is written; nothing is lost."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paceline.checkpoint.writer import HashedFile
from paceline.types import CheckpointError, TrainState, World
from tests import ranks
from tests.checkpoint.training import differing, opened, train, training

SLOW_S = 0.3


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file takes a while to be written."""
    swift = HashedFile.fileno

    def slowly(self: HashedFile) -> int:
        time.sleep(SLOW_S)  # before it is forced to the disk
        return swift(self)

    monkeypatch.setattr(HashedFile, "fileno", slowly)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to write more than `size` bytes to any file: EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)


def big() -> TrainState:
    return training(0, nn.Sequential(nn.Linear(4, 3000), nn.ReLU(), nn.Linear(3000, 2)))


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in (directory / "checkpoint").glob("step_*"))


def states(saver: Any) -> list[str]:
    return [save["state"] for save in saver.report()["saves"]]


def test_the_last_good_one_stays_until_the_next_is_committed(
    tmp_path: Path, slow_disk: None
) -> None:
    state, saver = training(0), opened("async", tmp_path, keep_last=1)
    train(state, 3, saver)
    saver.finish()
    saver = opened("async", tmp_path, keep_last=1)
    said = train(state, 4, saver)
    assert said == [False, False, True, True], "the step of the save, and the one beside it"
    assert names(tmp_path) == ["step_00000003"], "not committed yet, and nothing was deleted"
    saver.finish()
    assert names(tmp_path) == ["step_00000006"]


def test_a_step_in_which_it_ended_was_disturbed_too(tmp_path: Path) -> None:
    state, saver = training(0), opened("async", tmp_path)
    train(state, 3, saver)
    while states(saver) != ["committed"]:
        time.sleep(0.01)
    time.sleep(0.05)
    assert train(state, 2, saver) == [True, False]


def test_what_is_saved_is_the_state_of_its_step(tmp_path: Path, slow_disk: None) -> None:
    state, saver = training(0), opened("async", tmp_path)
    train(state, 3, saver)
    unbroken = training(0)
    train(unbroken, 3)
    train(state, 2, saver)  # while it is being written
    saver.finish()
    read = training(1)
    assert opened("async", tmp_path).load(read) == 3
    assert differing(read, unbroken) == []


def test_one_is_in_flight_and_the_next_waits(tmp_path: Path, slow_disk: None) -> None:
    state, saver = training(0), opened("async", tmp_path, every_steps=1, keep_last=9)
    train(state, 3, saver)
    saver.finish()
    first, *later = saver.report()["saves"]
    assert first["waited_s"] < SLOW_S / 2
    assert all(save["waited_s"] > SLOW_S / 2 for save in later)
    assert all(save["blocked_s"] >= save["waited_s"] for save in later)
    assert states(saver) == ["committed"] * 3


def test_or_is_skipped_but_never_the_last(tmp_path: Path, slow_disk: None) -> None:
    state = training(0)
    saver = opened("async", tmp_path, every_steps=1, keep_last=9, overlap="skip")
    train(state, 3, saver)
    assert saver.save(state, 3, now=True), "the same step, which was skipped"
    saver.finish()
    assert saver.report()["skipped"] == [2, 3]
    assert names(tmp_path) == ["step_00000001", "step_00000003"]


class TestAFailureInTheBackground:
    def test_stops_the_job_at_the_next_step(self, tmp_path: Path) -> None:
        state, saver = big(), opened("async", tmp_path)
        train(state, 3, saver)
        saver.finish()
        saver = opened("async", tmp_path)
        with files_of_at_most(20_000):
            train(state, 3, saver)
            with pytest.raises(CheckpointError, match=r"rank 0: .*File too large"):
                for _ in range(200):
                    train(state, 1, saver)
                    time.sleep(0.02)
        assert state.step < 9, "before another one was due"
        assert states(saver) == ["failed"]
        assert names(tmp_path) == ["step_00000003"]

    def test_is_raised_by_the_end_at_the_latest(self, tmp_path: Path) -> None:
        state, saver = big(), opened("async", tmp_path)
        with files_of_at_most(20_000):
            train(state, 3, saver)
            with pytest.raises(CheckpointError, match="File too large"):
                saver.finish()
        assert names(tmp_path) == []

    def test_or_is_said_and_the_next_one_is_tried(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        state, saver = big(), opened("async", tmp_path, on_failure="continue")
        with files_of_at_most(20_000):
            train(state, 3, saver)
            while saver.save(state, state.step + 1, now=False):
                time.sleep(0.02)
        train(state, 3, saver)
        saver.finish()
        assert states(saver) == ["failed", "committed"]
        assert "File too large" in saver.report()["saves"][0]["message"]
        assert "WARNING the checkpoint of step 3 failed" in capsys.readouterr().out
        assert names(tmp_path) == ["step_00000006"]


@pytest.mark.distributed
def test_the_training_communicates_meanwhile(tmp_path: Path) -> None:
    """Its collectives and those of the save don't meet."""
    for committed, total in ranks.run(_busy, 2, tmp_path):
        assert committed == ["step_00000003", "step_00000006", "step_00000009"]
        assert total == 2.0**9


def _busy(world: World, directory: Path) -> tuple[list[str], float]:
    state, saver = big(), opened("async", directory, world, keep_last=9)
    total = torch.ones(1)
    for _ in range(9):
        train(state, 1, saver)
        for _ in range(20):
            dist.all_reduce(torch.ones(1))
        dist.all_reduce(total)
        dist.barrier()
    saver.finish()
    dist.barrier()
    return names(directory), float(total)


@pytest.mark.distributed
@pytest.mark.parametrize("mode", ["sync", "dcp", "async"])
def test_what_fails_on_one_rank_fails_on_all(tmp_path: Path, mode: str) -> None:
    broken = 0 if mode == "sync" else 1  # the others write nothing there
    for said, committed, kind in ranks.run(_one_fails, 2, tmp_path, mode, broken):
        assert f"rank {broken}: " in said
        assert "File too large" in said
        assert kind == "OSError"
        assert committed == ["step_00000003"]


def _one_fails(world: World, directory: Path, mode: str, broken: int) -> tuple[str, list[str], str]:
    state, saver = big(), opened(mode, directory, world)
    train(state, 3, saver)
    saver.finish()
    saver = opened(mode, directory, world)
    with pytest.raises(CheckpointError) as raised:
        if world.rank == broken:
            with files_of_at_most(20_000):
                train(state, 3, saver)
                saver.finish()
        else:
            train(state, 3, saver)
            saver.finish()
    dist.barrier()
    return str(raised.value), names(directory), type(raised.value.__cause__).__name__
