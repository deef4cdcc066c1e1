"""`paceline status` on a cluster: what SLURM says of a directory's jobs, from any process."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from paceline.controller.slurm.book import Book, read_book
from paceline.controller.slurm.settle import APART_S, FINAL, CellView, progress, settle
from paceline.controller.slurm.state import NEVER, UNKNOWN, JobState, look
from paceline.controller.slurm.watch import wait
from paceline.controller.sweep import make_table
from paceline.report.commands import Submitted
from paceline.report.terminal import screen
from paceline.types import ConfigError


class Queue:
    """A `report.commands.Cluster`."""

    def look(self, directory: Path) -> Submitted | None:
        """None for a directory of which nothing was submitted. Gives each job that is over without
        a record one, for which it looks twice. Without an answer from SLURM: files alone."""
        book = read_book(directory)
        if book is None:
            return None
        try:
            states = _settled(book, directory)
            note, idle = None, all(state.over for state in states.values())
        except ConfigError as error:
            states, idle = {}, True
            note = f"{error}; shown is what the files say, as of when they were written"
        views = progress(directory, states)
        waiting = [view.name for view in views if view.started and view.state not in FINAL]
        cells = {view.name: asdict(view) | {"says": words(view)} for view in views}
        return Submitted(cells, note, over=idle and not waiting)

    def wait(self, directory: Path) -> None:
        """Until all of it is over; who is where goes to standard error. Raises Interrupted when the
        user leaves, ConfigError for one cell of a sweep."""
        book = read_book(directory)
        if book is not None and book.root != directory.absolute():
            way = f"paceline status {book.root} --wait"
            raise ConfigError([f"{directory}: --wait is for a whole sweep: {way}"])
        wait(directory, Console(stderr=True))

    def table(self, directory: Path) -> None:
        """Written and shown."""
        make_table(directory, screen())


def words(view: CellView) -> str:
    """Where a job is that has no final record: `on n1 since 2026-11-30 13:32:39`."""
    if view.state in FINAL:
        return ""
    if view.state == "pending":
        return _waiting(view)
    if view.state != "running":
        return f"{view.word} for SLURM; its record is not written yet"
    if view.word == UNKNOWN:
        return ""
    word = "" if view.word == "RUNNING" else f"{view.word.lower()} "
    on = f"on {view.nodes}" if view.nodes else "on a node"
    since = f" since {view.since.replace('T', ' ')}" if view.since else ""
    return f"{word}{on}{since}"


def _waiting(view: CellView) -> str:
    if view.word != "PENDING":
        return "its allocation hasn't come to it" if view.word != UNKNOWN else ""
    way = next((way for reason, way in NEVER.items() if view.reason.startswith(reason)), None)
    if way is not None:
        return f"{view.reason}: it never starts like this; {way}, or scancel {view.id}"
    return view.reason


def _settled(book: Book, directory: Path) -> dict[str, JobState]:
    states = look(book.ids)
    settle(directory, states)
    open_ids = {
        view.id
        for view in progress(directory, states)
        if view.started and view.state not in FINAL and states[view.id].over
    }
    if open_ids:
        time.sleep(APART_S + 0.1)
        states |= look(open_ids)
        settle(directory, states)
    return states
