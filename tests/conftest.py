"""Running the real command, bounded in processes and time, with nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

MOST_PROCESSES = 40
"""A launcher that starts itself again has eaten machines: end everything long before that."""

TINY = [
    "model=mlp",
    "data=digits",
    "data.flatten=true",
    "optimizer=sgd",
    "scheduler=constant",
    "measure=quick",
    "measure.window_s=0",
    "run.steps=30",
    "run.eval_batches=1",
]
"""A job of milliseconds on real data."""


@dataclass
class Done:
    """What a command did. `cwd`: where it ran."""

    code: int
    out: str
    err: str
    cwd: Path

    def jobs(self, where: str = "outputs/jobs") -> list[dict[str, Any]]:
        """The records in the job directories below `where`, by name."""
        return [json.loads(p.read_text()) for p in sorted(self.cwd.glob(f"{where}/*/result.json"))]

    def job(self) -> dict[str, Any]:
        (only,) = self.jobs()
        return only

    def table(self) -> dict[str, Any]:
        (only,) = self.cwd.glob("outputs/sweeps/*/table.json")
        found: dict[str, Any] = json.loads(only.read_text())
        return found


class Command:
    """`command("compile=off", ...)` runs paceline and waits; `start` gives the process instead."""

    def __init__(self, cwd: Path) -> None:
        self.cwd, self.most = cwd, MOST_PROCESSES
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str, timeout_s: float = 120, **options: Any) -> Done:
        return self.wait(self.start(*words, **options), timeout_s)

    def start(
        self,
        *words: str,
        program: list[str] | None = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[str]:
        program = program or [sys.executable, "-m", "paceline"]
        process = subprocess.Popen(
            [*program, *words],
            cwd=cwd or self.cwd,
            env={**os.environ, **(env or {}), "PACELINE_TEST": self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def wait(self, process: subprocess.Popen[str], timeout_s: float = 120) -> Done:
        """Until it ends; everything is killed and the test fails beyond the bounds."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                out, err = process.communicate(timeout=0.5)
                return Done(process.returncode, out, err, self.cwd)
            except subprocess.TimeoutExpired:
                number = len(self.alive())
                if number > self.most or time.monotonic() > deadline:
                    self.kill_all()
                    out, err = process.communicate()
                    said = f"{out[-3000:]}\n{err[-3000:]}"
                    pytest.fail(f"{number} processes after {timeout_s} s at most\n{said}")

    def alive(self) -> list[psutil.Process]:
        """Every process that carries this test's mark, whoever its parent is now."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("PACELINE_TEST") == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill_all(self) -> None:
        for process in self.alive():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue

    def assert_nothing_left(self, within_s: float = 10) -> None:
        deadline = time.monotonic() + within_s
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        left = [p.cmdline() for p in self.alive()]
        self.kill_all()
        assert not left, f"left running: {left}"


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Paceline in an empty directory; in the end no process of it may be left."""
    made = Command(tmp_path)
    yield made
    made.assert_nothing_left()


@pytest.fixture(scope="module")
def module_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """The same for tests that look at one run together."""
    made = Command(tmp_path_factory.mktemp("run"))
    yield made
    made.assert_nothing_left()


@pytest.fixture
def tiny() -> list[str]:
    return list(TINY)


@pytest.fixture
def until() -> Callable[..., None]:
    """`until(condition, timeout_s)`: wait for it, or fail."""

    def wait(condition: Callable[[], object], timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.02)

    return wait
