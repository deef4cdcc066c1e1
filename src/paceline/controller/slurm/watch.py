"""Wait for submitted jobs: who is where, until the last one is over. Ctrl-C cancels or leaves."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.controller.session import SESSION, Interrupted
from paceline.controller.slurm import call, state
from paceline.controller.slurm.book import JOBS, read_book
from paceline.controller.slurm.script import FOLDER
from paceline.controller.slurm.settle import FINAL, CellView, progress, settle
from paceline.record.schema import RAN, read_json
from paceline.types import ConfigError

LOOK_EVERY_S, LATER_EVERY_S, SOON_S = 2.0, 10.0, 60.0
"""SLURM is asked that often; after SOON_S less often: all its users ask the same controller."""

PATIENCE_S = 600.0
"""A controller that doesn't answer may be restarting: so long nothing is given up."""

SETTLED_S = 90.0
"""After the last end all rows are there within that time, where they can be written."""

SUMMARY_EVERY_S = 30.0
MOST_ROWS = 25
COLUMNS = ("cell", "job", "state", "on", "step", "rate", "restarts")


def wait(directory: Path, console: Console) -> None:
    """Return once every job of this sweep (or job) is over and has its row.

    Raises Interrupted when the user left, or cancelled them; ConfigError when SLURM doesn't answer
    any more.
    """
    book = read_book(directory)
    if book is None:
        raise ConfigError([f"{directory}: nothing of it was submitted (no {FOLDER}/{JOBS})"])
    ids = book.ids
    view = _View(console, directory)
    began = heard = time.monotonic()
    ended: float | None = None
    cancelled = False
    with _asking() as asked, view:
        while True:
            try:
                states = state.look(ids)
                settle(directory, states)
                heard = time.monotonic()
            except ConfigError:
                if time.monotonic() - heard > PATIENCE_S:
                    raise
            else:
                cells = progress(directory, states)
                view.show(cells)
                if not all(one.over for one in states.values()):
                    ended = None
                elif not any(map(_open, cells)):
                    break
                else:
                    ended = heard if ended is None else ended
                    if heard - ended > SETTLED_S:  # nobody may write here
                        break
            due = time.monotonic() + (
                LOOK_EVERY_S if time.monotonic() - began < SOON_S else LATER_EVERY_S
            )
            while time.monotonic() < due and not asked.signal:
                time.sleep(0.1)
            if asked.signal and cancelled:
                break
            if asked.signal:
                cancelled = _decide(asked, ids, directory, view, book.collector)
    if cancelled:
        _interrupt()
    _dismiss(book.collector)


def _interrupt() -> NoReturn:
    SESSION.states.append("interrupted")
    raise Interrupted("interrupted")


def _dismiss(collector: str | None) -> None:
    """It would only do once more what the caller does now; unless this is the collector itself."""
    if collector is not None and os.environ.get("SLURM_JOB_ID") != collector:
        with suppress(ConfigError):
            call.scancel([collector])


def _open(cell: CellView) -> bool:
    """Has its SLURM job ended, and its row not been written yet?"""
    return cell.started and cell.state not in FINAL


@dataclass
class _Asked:
    signal: int = 0
    prompting: bool = False


@contextmanager
def _asking() -> Iterator[_Asked]:
    """Ctrl-C and SIGTERM are noted, not raised: nothing is half done when the user is asked."""
    asked = _Asked()

    def note(number: int, frame: object) -> None:
        asked.signal = number
        if asked.prompting:
            raise Interrupted("interrupted")

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _decide(
    asked: _Asked, ids: list[str], directory: Path, view: _View, collector: str | None
) -> bool:
    """Were they cancelled? Raises Interrupted for: leave them alone."""
    can_ask = asked.signal == signal.SIGINT and view.console.is_terminal and sys.stdin.isatty()
    answer = _answer(asked, view) if can_ask else "d"
    asked.signal = 0
    if answer == "c":
        call.scancel(ids if collector is None else [*ids, collector])
        view.say("cancelled; waiting for their ends")
        return True
    if answer == "w":
        return False
    view.say(
        f"left alone, they run on. Again: paceline status {directory} --wait   To cancel: "
        f"scancel {' '.join(ids)}"
    )
    _interrupt()


def _answer(asked: _Asked, view: _View) -> str:
    asked.signal, asked.prompting = 0, True
    view.pause()
    try:
        said = input("Ctrl-C: [c]ancel the jobs, [d]etach (they run on), [w]ait? [d] ").strip()
    except (Interrupted, EOFError):
        said = "d"
    finally:
        asked.prompting = False
        view.resume()
    return said[:1].lower() or "d"


@dataclass
class _View:
    """On a terminal a table that is drawn anew; else a line for each change."""

    console: Console
    directory: Path
    _said: dict[str, str] = field(default_factory=dict)
    _next_summary: float = 0.0
    _live: Live | None = None

    def __enter__(self) -> _View:
        self.resume()
        self._next_summary = time.monotonic() + SUMMARY_EVERY_S
        return self

    def __exit__(self, *error: object) -> None:
        self.pause()

    def resume(self) -> None:
        if self.console.is_terminal:
            self._live = Live(console=self.console, transient=True, auto_refresh=False)
            self._live.start()

    def pause(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, cells: list[CellView]) -> None:
        for cell in cells:
            word = _word(cell)
            if self._said.get(cell.name) != word:
                self._said[cell.name] = word
                if self._live is None or cell.state in FINAL:
                    self.say(f"{cell.name}  job {cell.id}: {word}{self._rate(cell)}")
        if self._live is not None:
            self._live.update(_table(cells), refresh=True)
        elif time.monotonic() >= self._next_summary:
            self._next_summary = time.monotonic() + SUMMARY_EVERY_S
            counts = Counter(_word(cell).partition(" ")[0].rstrip(":") for cell in cells)
            self.say(", ".join(f"{n} {word}" for word, n in counts.items()))

    def _rate(self, cell: CellView) -> str:
        """Of one that has ended."""
        if cell.state not in RAN:
            return ""
        path = self.directory / cell.name / "result.json"
        record = read_json(path) or {}  # of a single job, who called shows it
        rate = record.get("throughput", {}).get("sustained_units_per_s")
        return "" if rate is None else f", {rate:,.0f}/s"


def _word(cell: CellView) -> str:
    if cell.state in FINAL:
        return f"{cell.state}: {cell.message}" if cell.message else cell.state
    again = f", restart {cell.restarts}" if cell.restarts else ""
    where = f" on {cell.nodes}" if cell.nodes and cell.word == "RUNNING" else ""
    why = f" ({cell.reason})" if cell.reason and cell.word == "PENDING" else ""
    return f"{cell.word.lower()}{where}{why}{again}"


def _table(cells: list[CellView]) -> Table:
    """Those under way first; what doesn't fit is counted."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    ranked = sorted(cells, key=lambda c: (c.state in FINAL, c.word != "RUNNING"))
    for cell in ranked[:MOST_ROWS]:
        over = cell.state in FINAL
        step = "" if over or cell.step is None else f"{cell.step}/{cell.steps}"
        rate = "" if over or cell.units_per_s is None else f"{cell.units_per_s:,.0f}/s"
        word = cell.state if over else cell.word.lower()
        row = (cell.name, cell.id, word, cell.nodes, step, rate, str(cell.restarts or ""))
        table.add_row(*map(Text, row))
    if len(ranked) > MOST_ROWS:
        table.add_row(Text(f"and {len(ranked) - MOST_ROWS} more"))
    return table
