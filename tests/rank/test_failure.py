"""A failure's kind, and which of several ranks' accounts was the cause."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
import torch

from paceline.rank.failure import is_communication, kind_of, write_failure
from paceline.record.failure import read_failures
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
