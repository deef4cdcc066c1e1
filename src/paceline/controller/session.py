"""What this controller process did: the one place that knows how it must exit."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.controller.plan import Job

EXIT_OK, EXIT_FAILED, EXIT_CONFIG, EXIT_GATE = 0, 1, 2, 3
EXIT_PREEMPTED, EXIT_INTERRUPTED = 75, 130


class Interrupted(KeyboardInterrupt):
    """The running job was told to stop. Not an Exception: it ends a sweep too."""


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what is inside by Interrupted, so that it leaves no process."""

    def stop(number: int, frame: object) -> None:
        SESSION.heard = number
        raise Interrupted("interrupted")

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class Session:
    """`sweep_dir`: set when a multirun starts. `command`: what was typed. `store`: the outer
    launcher's, when this process is one of its ranks. `held`: locks kept until the end. `token`:
    names this start of paceline. `signal`: what the last job was told to stop by, 0: nothing.
    `heard`: the same outside of a job, kept because a library may swallow what it raises."""

    command: str = ""
    sweep_dir: Path | None = None
    job: Job | None = None
    states: list[str] = field(default_factory=list)
    gate_failed: bool = False
    strict: bool = False
    signal: int = 0
    heard: int = 0
    store: Any = None
    held: ExitStack = field(default_factory=ExitStack)
    held_sweep: Path | None = None
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def exit_code(self) -> int:
        """By the worst that happened."""
        if "interrupted" in self.states:
            return EXIT_INTERRUPTED
        if "preempted" in self.states:
            return EXIT_PREEMPTED
        if "failed" in self.states:
            return EXIT_FAILED
        return EXIT_GATE if self.gate_failed else EXIT_OK


SESSION = Session()
