"""The terminal while a job runs: a progress line, and what the ranks have to say.

Rank 0's lines are shown as they come, warnings and errors of the other ranks with their rank,
the same one once.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.controller.use import Unseen, Use
from paceline.record.schema import read_json
from paceline.report.tensorboard import Live

LOOK_EVERY_S = 0.5
PLAIN_EVERY_S = 10.0
LOUD = re.compile(r"^(WARNING|ERROR|CRITICAL)\b")


class Watch:
    """A thread that looks twice a second: at files and processes, and never touches the ranks."""

    def __init__(
        self, directory: Path, ranks: Iterable[int], console: Console, use: Use | Unseen
    ) -> None:
        self.use = use
        self._live = Live(directory)
        self._log = directory / "log"
        self._console = console
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._read = dict.fromkeys(ranks, 0)
        self._said: set[str] = set()
        self._next_plain, self._shown_step = time.monotonic() + PLAIN_EVERY_S, 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}  {task.fields[facts]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=1, facts="")

    def __enter__(self) -> Watch:
        self._progress.start()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()
        self.use.close()
        self._live.close()
        self._progress.stop()
        self._speak()

    def _watch(self) -> None:
        while not self._end.wait(LOOK_EVERY_S):
            self._speak()
            self._step()

    def _step(self) -> None:
        try:
            account = read_json(self._log / "progress.json")
        except ValueError:
            return
        self.use.look(account)
        if account is None:
            self._progress.refresh()
            return
        self._live.add(account)
        step, steps, facts = account["step"], account["steps"], _facts(account, self.use.words())
        beyond = step > steps
        self._progress.update(
            self._task,
            description=f"measuring on, {step - steps} steps more" if beyond else "training",
            completed=min(step, steps),
            total=steps,
            facts=facts,
        )
        self._progress.refresh()
        due = time.monotonic() >= self._next_plain and step != self._shown_step
        if due and not self._console.is_terminal:
            self._next_plain, self._shown_step = time.monotonic() + PLAIN_EVERY_S, step
            more = f" and {step - steps} more to measure" if beyond else ""
            self._say(f"step {min(step, steps)}/{steps}{more}  {facts}")

    def _speak(self) -> None:
        for rank in self._read:
            for line in self._new_lines(rank):
                if rank == 0 and not LOUD.match(line):
                    self._say(line)
                elif LOUD.match(line) and line not in self._said:
                    self._said.add(line)
                    self._say(f"[rank {rank}] {line}")

    def _new_lines(self, rank: int) -> list[str]:
        path = self._log / f"rank{rank}.log"
        try:
            with path.open("rb") as file:
                file.seek(self._read[rank])
                raw = file.read()
        except OSError:
            return []
        whole = raw[: raw.rfind(b"\n") + 1]
        self._read[rank] += len(whole)
        return whole.decode(errors="replace").splitlines()

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _facts(account: dict[str, Any], use: list[str]) -> str:
    facts = []
    if account["loss"] is not None:
        facts.append(f"loss {account['loss']:.3f}")
    facts.append(f"{account['units_per_s']:,.0f}/s")
    if account["data_wait_share"] is not None:
        facts.append(f"data wait {account['data_wait_share']:.0%}")
    return "  ".join([*facts, *use])
