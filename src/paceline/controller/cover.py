"""A covering array: few of all combinations, with every pair of values in one of them.

Chosen greedily (as in Cohen et al., The AETG system, IEEE TSE 23(7), 1997). What can't run together
is learnt on the way: a combination is looked at only when it would be chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

SEEDS = 32
"""Pairs around which each next cell is tried; the cell with the most new pairs is taken."""

Values = tuple[str, ...]
"""Overrides, one for each of some swept keys; a cell has one for each."""


@dataclass(frozen=True)
class Conflict:
    """Why a cell can't run, and the values in it that this hangs on: no cell with them can."""

    holds: frozenset[str]
    reason: str


@dataclass(frozen=True)
class Cover:
    """`impossible`: the values, alone or in pairs, that no cell can hold, with the reason."""

    cells: list[Values]
    impossible: dict[Values, str]


def cover(values: Sequence[Sequence[str]], why_not: Callable[[Values], list[Conflict]]) -> Cover:
    """Cells that hold every pair of values of two keys that can run together, none of them twice,
    in the order of the whole product; of one key, every value.

    `values`: the overrides of each key, no two alike. `why_not`: conflicts of a cell, none if it
    can run; asked once a cell at most. The first cell has every key at its first value, if that can
    run. Deterministic; greedy, so not always the fewest.
    """
    search = _Search(values)
    search.try_cell(tuple(options[0] for options in values), why_not)
    while (best := search.best()) is not None:
        search.try_cell(best, why_not)
    return Cover(search.needed(), search.explained())


@dataclass
class _Search:
    """`wanted`: sets of values that no cell holds yet. `stuck`: those that none can, with what
    was in the way."""

    values: Sequence[Sequence[str]]
    wanted: dict[frozenset[str], None] = field(default_factory=dict)
    cells: list[Values] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    stuck: dict[frozenset[str], list[Conflict]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pool in combinations(self.values, min(2, len(self.values))):
            for held in product(*pool):
                self.wanted[frozenset(held)] = None
        everything = (value for options in self.values for value in options)
        self.left = Counter(value for held in self.wanted for value in held)
        self.place = {value: place for place, value in enumerate(everything)}

    def try_cell(self, cell: Values, why_not: Callable[[Values], list[Conflict]]) -> None:
        found = why_not(cell)
        self.conflicts += [conflict for conflict in found if conflict not in self.conflicts]
        if not found:
            self.cells.append(cell)
            for held in self._sets(cell):
                self._settle(held)

    def _settle(self, held: frozenset[str]) -> None:
        if held in self.wanted:
            del self.wanted[held]
            self.left -= Counter(held)

    def best(self) -> Values | None:
        """The cell with the most that is wanted, of those built around some of it; None when
        nothing is wanted any more. What turns out to be impossible is wanted no more."""
        found: Values | None = None
        most = tried = 0
        for seed in list(self.wanted):
            met: dict[Conflict, None] = {}
            cell = self._around(seed, met)
            if cell is None:
                self.stuck[seed] = list(met)
                self._settle(seed)
                continue
            new = sum(held in self.wanted for held in self._sets(cell))
            if new > most:
                found, most = cell, new
            tried += 1
            if tried == SEEDS:
                break
        return found

    def _around(self, seed: frozenset[str], met: dict[Conflict, None]) -> Values | None:
        """The cell with the seed in it, each further key at the value that adds the most; None if
        conflicts, which go to `met`, leave none."""
        if not self._free(seed, met):
            return None
        free = [options for options in self.values if not seed & set(options)]
        # what conflicts are about first: a dead end is then met before much is built on it
        free.sort(key=lambda options: -sum(bool(c.holds & set(options)) for c in self.conflicts))
        return self._fill(seed, free, met)

    def _fill(
        self, taken: frozenset[str], free: list[Sequence[str]], met: dict[Conflict, None]
    ) -> Values | None:
        if not free:
            return tuple(sorted(taken, key=self.place.__getitem__))
        for value in sorted(free[0], key=lambda v: self._gain(v, taken), reverse=True):
            more = taken | {value}
            cell = self._fill(more, free[1:], met) if self._free(more, met) else None
            if cell is not None:
                return cell
        return None

    def _free(self, taken: frozenset[str], met: dict[Conflict, None]) -> bool:
        hit = next((c for c in self.conflicts if c.holds <= taken), None)
        if hit is not None:
            met[hit] = None
        return hit is None

    def _gain(self, value: str, taken: frozenset[str]) -> tuple[int, int]:
        """What the value adds now, and what it may add later."""
        now = sum(frozenset((value, other)) in self.wanted for other in taken)
        return now, self.left[value]

    def _sets(self, cell: Values) -> Iterator[frozenset[str]]:
        return map(frozenset, combinations(cell, min(2, len(cell))))

    def needed(self) -> list[Values]:
        """The cells in order, without those whose pairs others hold too; the first one stays."""
        times = Counter(held for cell in self.cells for held in self._sets(cell))
        kept = self.cells[:1]
        for cell in reversed(self.cells[1:]):
            mine = Counter(self._sets(cell))
            if all(times[held] > 1 for held in mine):
                times -= mine
            else:
                kept.append(cell)
        return sorted(kept, key=lambda cell: [self.place[value] for value in cell])

    def explained(self) -> dict[Values, str]:
        """What is stuck, each with its reason; a value that no cell holds at all stands alone."""
        used = {value for cell in self.cells for value in cell}
        met: dict[Values, dict[Conflict, None]] = {}
        for seed, conflicts in self.stuck.items():
            values = tuple(sorted(seed, key=self.place.__getitem__))
            dead: list[Values] = [(value,) for value in values if value not in used]
            for held in dead or [values]:
                met.setdefault(held, {}).update(dict.fromkeys(conflicts))
        order = sorted(met, key=lambda held: [self.place[value] for value in held])
        return {held: _reason(frozenset(held), met[held]) for held in order}


def _reason(held: frozenset[str], met: Iterable[Conflict]) -> str:
    """What was in the way; of several, what is about these values and the fewest others."""
    nearest = min(met, key=lambda c: (c.holds.isdisjoint(held), len(c.holds - held)))
    if nearest.holds <= held:
        return nearest.reason
    return f"not with any of the other values; one says: {nearest.reason}"
