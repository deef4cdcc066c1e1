"""What `paceline doctor` says: a line as soon as its topic is measured, and their number."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from paceline.diagnose.doctor import MISSING, STATES, Line, lines

STYLES = {"ok": "green", "slow": "yellow", "missing": "red"}
NAME_AT, TEXT_AT = 9, 24
SCHEMA = 1


class Findings:
    """Prints what it is told; everything once more as JSON."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: list[Line] = []
        self._facts: dict[str, Any] = {}

    def add(self, topic: str, facts: Mapping[str, Any]) -> None:
        """The measured facts of a topic (diagnose/doctor.py)."""
        self._facts[topic] = dict(facts)
        for line in lines(topic, facts):
            self._lines.append(line)
            self._show(line)

    def end(self) -> None:
        counts = self._counts()
        said = ", ".join(f"{number} {state}" for state, number in counts.items())
        self._console.print(said, highlight=False)

    @property
    def fine(self) -> bool:
        """Nothing that is needed is missing or broken."""
        return all(line.state != MISSING for line in self._lines)

    def as_json(self) -> dict[str, Any]:
        """schema, counts, lines without their tables, whose figures are in `facts`."""
        shown = [asdict(line) for line in self._lines]
        for line in shown:
            del line["table"]
        return {"schema": SCHEMA, "counts": self._counts(), "lines": shown, "facts": self._facts}

    def _counts(self) -> dict[str, int]:
        return {state: sum(line.state == state for line in self._lines) for state in STATES}

    def _show(self, line: Line) -> None:
        head = f"{line.state:<{NAME_AT}}{line.name:<{TEXT_AT - NAME_AT}}"
        for number, text in enumerate(self._wrapped(line.value)):
            shown = Text((head if number == 0 else " " * TEXT_AT) + text)
            if number == 0:
                shown.stylize(STYLES[line.state], 0, len(line.state))
            self._print(shown)
        self._below(line.why, "dim")
        for row in _columns(line.table):
            self._print(Text(f"{'':{TEXT_AT}}{row}"))
        self._below(f"-> {line.way_out}" if line.way_out else "", "bold")

    def _below(self, text: str, style: str) -> None:
        for part in self._wrapped(text) if text else []:
            self._print(Text(f"{'':{TEXT_AT}}{part}", style))

    def _wrapped(self, text: str) -> list[str]:
        room = max(20, self._console.width - TEXT_AT)
        return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _columns(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
    return ["  ".join(f"{text:>{w}}" for text, w in zip(row, widths, strict=True)) for row in rows]
