"""Fresh processes that are asked one thing, by the forkserver that starts the ranks of jobs:
bounded in time, their words kept off the terminal."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from paceline.controller.launch import ensure_forkserver

GRACE_S = 5.0
"""The others may take so much longer once one has failed: they have often waited for it."""

SERVER = "forkserver"
NO_ANSWER = "it gave no answer within {limit_s:.0f} s and was ended"


class Refused(RuntimeError):
    """A whole sentence of ours: the answer's `why` as it is, without its type."""


@dataclass(frozen=True)
class Answer:
    """What a process answered; or, with `value` null, why it didn't."""

    value: dict[str, Any] | None
    why: str | None = None


def ask(
    function: Callable[..., dict[str, Any]], given: Sequence[tuple[Any, ...]], limit_s: float
) -> list[Answer]:
    """`function(*arguments)` in a process of its own for each of `given`, at the same time; their
    answers in that order. From the main thread. None of them, nor a child of theirs, is left."""
    with TemporaryDirectory(prefix="paceline-doctor-") as folder:
        asked: list[_Asked] = []
        try:
            with _stderr_to(Path(folder) / SERVER):
                ensure_forkserver()
            for number, arguments in enumerate(given):
                asked.append(_Asked(function, arguments, Path(folder) / str(number)))
            _collect(asked, limit_s)
        except (OSError, EOFError) as error:
            why = _last_line(Path(folder) / SERVER) or str(error)
            return [Answer(None, f"no process can be started: {why}")] * len(given)
        finally:
            for one in asked:
                one.end()
        return [one.answer or Answer(None, NO_ANSWER.format(limit_s=limit_s)) for one in asked]


def _collect(asked: list[_Asked], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    left = {one.pipe: one for one in asked}
    while left:
        ready = connection.wait(list(left), max(0.0, deadline - time.monotonic()))
        if not ready:
            return
        for pipe in ready:
            one = left.pop(pipe)  # type: ignore[call-overload]
            one.receive()
            if one.answer.value is None:
                deadline = min(deadline, time.monotonic() + GRACE_S)


class _Asked:
    answer: Answer | None = None

    def __init__(
        self, function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], words: Path
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        self.pipe, theirs = context.Pipe(duplex=False)
        self._words = words
        self._process = context.Process(
            target=_answer, args=(theirs, function, arguments, str(words))
        )
        self._process.start()
        theirs.close()

    def receive(self) -> None:
        try:
            value, why = self.pipe.recv()
        except EOFError:
            value, why = None, self._ending()
        self.answer = Answer(value, why)

    def _ending(self) -> str:
        self._process.join(GRACE_S)
        code = self._process.exitcode
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        said = _last_line(self._words)
        return f"it ended by {how}" + (f": {said}" if said else "")

    def end(self) -> None:
        if self.answer is not None:
            self._process.join(GRACE_S)  # what it used is put away by itself
        try:
            whole = psutil.Process(self._process.pid)
            family = [*whole.children(recursive=True), whole]
        except psutil.NoSuchProcess:
            family = []
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.join(GRACE_S)
        self.pipe.close()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """What is started meanwhile writes its errors there: a broken torch ends the forkserver with
    pages of them."""
    sys.stderr.flush()
    kept, file = os.dup(2), os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _last_line(path: Path) -> str:
    try:
        said = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return said[-1] if said else ""


def _answer(
    pipe: Any, function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], words: str
) -> None:
    """In the process that is asked."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    descriptor = os.open(words, os.O_WRONLY | os.O_CREAT, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    try:
        pipe.send((function(*arguments), None))
    except Refused as error:
        pipe.send((None, str(error)))
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        pipe.send((None, f"{type(error).__name__}: {first}"))


def _end_with_parent() -> None:
    """Whatever ends the controller ends this process too, and with it what it waits for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)
