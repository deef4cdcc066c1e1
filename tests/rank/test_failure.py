"""A failure's kind, and which of several ranks' accounts was the cause."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from paceline.rank.failure import is_communication, kind_of, write_failure
from paceline.record.failure import MORE_MEMORY, read_failures
from paceline.types import CheckpointError, DataError, Nonfinite

BROKEN = RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]")


@pytest.mark.parametrize(
    ("error", "phase", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "forward", "oom"),
        (MemoryError(), "build", "oom"),
        (Nonfinite("the loss is nan", 4), "train", "nonfinite"),
        (OSError(errno.ENOSPC, "No space left on device"), "checkpoint", "disk_full"),
        (OSError(errno.EACCES, "denied"), "checkpoint", "checkpoint_error"),
        (CheckpointError("torn"), "load", "checkpoint_error"),
        (DataError("ended"), "data_wait", "data_error"),
        (KeyError("label"), "data_wait", "data_error"),
        (BROKEN, "backward", "comm_timeout"),
        (ValueError("planted"), "forward", "error"),
    ],
)
def test_kinds(error: BaseException, phase: str, kind: str) -> None:
    assert kind_of(error, phase) == kind


def test_a_compiler_error_is_known_by_where_it_comes_from() -> None:
    from torch._dynamo.exc import Unsupported

    assert kind_of(Unsupported("graph break"), "forward") == "compile_error"


def test_only_a_broken_collective_is_communication() -> None:
    assert is_communication(BROKEN)
    assert not is_communication(ValueError("gloo"))


@pytest.mark.parametrize(
    ("message", "timed_out"),
    [
        ("[../unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete", True),
        ("Application timeout caused pair closure", True),
        ("[../pair.cc:547] Connection closed by peer [127.0.0.1]", False),
    ],
)
def test_what_gloo_says_of_a_broken_collective(
    message: str, timed_out: bool, tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    write_failure(tmp_path, 0, "backward", 3, RuntimeError(message))
    (account,) = read_failures(tmp_path)
    assert (account["kind"], account["communication"]) == ("comm_timeout", True)
    assert account["timed_out"] is timed_out


def test_the_cause_comes_first_even_if_it_was_written_later(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write_failure(tmp_path, 0, "backward", 3, BROKEN)
    time.sleep(0.01)
    write_failure(tmp_path, 1, "forward", 3, ValueError("planted"))
    cause, consequence = read_failures(tmp_path)
    assert (cause["rank"], cause["phase"], cause["step"]) == (1, "forward", 3)
    assert "ValueError: planted" in cause["traceback"]
    assert consequence["communication"]


def test_no_place_to_write_to_hides_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_failure(tmp_path / "gone", 0, "build", None, ValueError("planted"))
    assert "ERROR cannot write" in capsys.readouterr().out


def test_a_number_that_is_none_names_its_own_step(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    write_failure(tmp_path, 0, "account", None, Nonfinite("the loss is nan", 7))
    assert read_failures(tmp_path)[0]["step"] == 7


TOO_MUCH = 1 << 50
"""Bytes; more than a process can address."""


class Greedy(Dataset[Any]):
    """Asks for more than there is, in the loader's worker."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask = ask

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.ask()


def in_a_worker(ask: Callable[[], Any]) -> Any:
    loader = DataLoader(Greedy(ask), num_workers=1, timeout=1, multiprocessing_context="fork")
    batches: Any = iter(loader)
    try:
        return next(batches)
    finally:
        batches._shutdown_workers()  # left to the garbage collection it takes 5 s


class TestOutOfMemory:
    """What really is raised when memory is refused."""

    ASKED: ClassVar[dict[str, Callable[[], Any]]] = {
        "torch": lambda: torch.empty(TOO_MUCH),
        "python": lambda: bytearray(TOO_MUCH),
        "numpy": lambda: np.empty(TOO_MUCH, dtype=np.uint8),
        "mmap": lambda: mmap.mmap(-1, TOO_MUCH),
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as the kernel does it
    }

    @pytest.mark.parametrize("asked", ["torch", "python", "numpy", "mmap"])
    def test_it_is_an_oom(self, asked: str) -> None:
        with pytest.raises((RuntimeError, MemoryError, OSError)) as raised:
            self.ASKED[asked]()
        assert kind_of(raised.value, "forward") == "oom"

    @pytest.mark.parametrize("asked", ASKED)
    def test_it_is_one_when_it_befalls_a_worker(self, asked: str) -> None:
        with pytest.raises((RuntimeError, MemoryError, OSError)) as raised:
            in_a_worker(self.ASKED[asked])
        assert kind_of(raised.value, "data_wait") == "oom", repr(raised.value)

    def test_it_is_one_under_another_name_too(self) -> None:
        with pytest.raises(CheckpointError) as raised:
            try:
                self.ASKED["numpy"]()
            except MemoryError as error:
                raise CheckpointError("step_00000003 can't be written") from error
        assert kind_of(raised.value, "checkpoint") == "oom"

    def test_an_error_of_a_worker_is_none(self) -> None:
        with pytest.raises(ZeroDivisionError) as raised:
            in_a_worker(lambda: 1 // 0)
        assert kind_of(raised.value, "data_wait") == "data_error"

    @pytest.mark.parametrize("error", [MemoryError(), MemoryError("16 GiB")])
    def test_the_account_says_the_way_out(self, tmp_path: Path, error: MemoryError) -> None:
        (tmp_path / "log").mkdir()
        write_failure(tmp_path, 0, "forward", 0, error)
        what, way = read_failures(tmp_path)[0]["message"].splitlines()
        assert what == (str(error) or "no memory is left")
        assert way == MORE_MEMORY
        assert "run.accumulation_steps" in way and "hydra/sweeper=micro_batch" in way
