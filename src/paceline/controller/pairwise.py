"""The cells of a pairwise sweep: a covering array of what was typed that breaks no rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig

from paceline.config import leaves, shown
from paceline.controller.cover import Conflict, Values, cover
from paceline.controller.problems import Findings, examine
from paceline.controller.rules import RULES, world_size
from paceline.controller.sweep import check_swept
from paceline.types import ConfigError

KEY = "hydra.sweeper.most"


@dataclass(frozen=True)
class Plan:
    """Cells as overrides, repeats outermost, and what is to be said of them."""

    cells: list[list[str]]
    notes: list[str]


Compose = Callable[[Sequence[str]], DictConfig]
"""A cell's overrides -> its config, with Hydra's node."""


def plan(typed: Mapping[str, list[str]], compose: Compose, most: int) -> Plan:
    """The cells of what was typed: key -> its overrides, `repeat` among them.

    `most`: combinations that may be looked at. Raises ConfigError with every problem of a value,
    else if the first value of every key can't run together, else if `most` is too few.
    """
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ConfigError([f"{KEY}={shown(most)}: give a whole number, 1 or more"])
    repeats = dict.fromkeys(typed["repeat"])
    once = {key: options for key, options in typed.items() if key != "repeat"}
    looked = _Looked(once, compose, most)
    looked.check()
    found = cover(list(looked.swept.values()), looked.why_not)
    notes = [
        f"can't run{' together' * (len(held) > 1)}: {' with '.join(held)}: {reason}"
        for held, reason in found.impossible.items()
    ]
    possible = math.prod(map(len, looked.swept.values()))
    notes.append(
        f"pairwise: {len(found.cells)} of {possible} combinations, with every pair of values that "
        f"can run together ({len(looked.seen)} looked at)"
    )
    return Plan([[r, *looked.overrides(cell)] for r in repeats for cell in found.cells], notes)


class _Looked:
    """The combinations of the keys in `typed` that have several values, each composed when it is
    asked for. `touched`: key -> where in a config its values make a difference."""

    def __init__(self, typed: Mapping[str, list[str]], compose: Compose, most: int) -> None:
        self.typed = {key: list(dict.fromkeys(options)) for key, options in typed.items()}
        self.swept = {key: options for key, options in self.typed.items() if len(options) > 1}
        self.compose, self.most = compose, most
        self.seen: dict[Values, Findings] = {}
        self.touched: dict[str, set[str]] = {}

    def overrides(self, cell: Values) -> list[str]:
        chosen = dict(zip(self.swept, cell, strict=True))
        return [chosen.get(key, options[0]) for key, options in self.typed.items()]

    def look(self, cell: Values) -> Findings:
        if cell not in self.seen:
            if len(self.seen) == self.most:
                raise ConfigError(
                    [
                        f"{KEY}={self.most}: so many combinations were looked at, and there are "
                        "pairs of values that none of them holds; sweep fewer values, or raise it"
                    ]
                )
            self.seen[cell] = examine(self.compose(self.overrides(cell)))
        return self.seen[cell]

    def check(self) -> None:
        """Look at the first cell, and at each further value in its place; ConfigError if that
        makes no sweep."""
        self._check_size()
        problems = check_swept([[v] for options in self.swept.values() for v in options])
        first = tuple(options[0] for options in self.swept.values())
        base = self.look(first)
        problems += base.problems
        for at, (key, options) in enumerate(self.swept.items()):
            self.touched[key] = {key.lstrip("+~")}
            for value in options[1:]:
                found = self.look((*first[:at], value, *first[at + 1 :]))
                problems += found.problems
                self.touched[key] |= _differences(found, base)
        problems = problems or [_no_baseline(first, reason) for reason in base.broken]
        if problems:
            raise ConfigError(problems)

    def _check_size(self) -> None:
        sizes = {key: len(options) for key, options in self.swept.items()}
        largest = sorted(sizes, key=lambda key: -sizes[key])[:2]
        least = math.prod(sizes[key] for key in largest)
        if least > self.most:
            raise ConfigError(
                [
                    f"{KEY}={self.most}: every pair of values of {' and '.join(largest)} needs "
                    f"{least} cells; give them fewer values, or raise it"
                ]
            )

    def why_not(self, cell: Values) -> list[Conflict]:
        """A conflict for each rule that the cell breaks. Raises ConfigError for what is no rule:
        then the cell isn't well-formed, though each of its values is."""
        found = self.look(cell)
        if found.problems:
            raise ConfigError(found.problems)
        if not found.broken:
            return []
        ranks = world_size(found.config, found.choices)
        reads = {rule(found.config, found.choices, ranks): keys for keys, rule in RULES}
        return [Conflict(self._hangs_on(cell, reads[said]), said) for said in found.broken]

    def _hangs_on(self, cell: Values, read: Sequence[str]) -> frozenset[str]:
        """The values in the cell that what a rule reads comes from."""
        return frozenset(
            value
            for key, value in zip(self.swept, cell, strict=True)
            if any(_overlap(place, other) for place in self.touched[key] for other in read)
        )


def _no_baseline(first: Values, reason: str) -> str:
    if not first:
        return reason
    return (
        f"{' '.join(first)}: the first value of every key makes the baseline, and that can't run "
        f"({reason}); give values first that can"
    )


def _overlap(one: str, other: str) -> bool:
    """Is one place in a config inside the other?"""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _differences(one: Findings, other: Findings) -> set[str]:
    """Where two configs, or the options chosen for them, aren't the same."""
    a, b = ({**dict(leaves(f.config)), **f.choices} for f in (one, other))
    missing = object()
    return {
        place for place in a.keys() | b.keys() if a.get(place, missing) != b.get(place, missing)
    }
