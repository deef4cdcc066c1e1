"""Cells of a sweep that follow a piece of advice: what it gained, beside what was predicted."""

from __future__ import annotations

from paceline.compare import pairs
from paceline.compare.pairs import Cell, Record
from paceline.compare.verdict import paired_ratio
from paceline.record.predictions import Prediction


def measured(records: list[Record], predictions: list[Prediction]) -> list[Prediction]:
    """The predictions that these cells tell of, with `measured_gain`, the geometric mean over
    repeats, and its 95 % interval. A cell tells if it is the one that was diagnosed, or differs
    from it in nothing that is measured, and another one has the advised override and no more."""
    cells = pairs.cells([r for r in records if not r["job"]["nudge"]])
    found = []
    for base in cells:
        hashes = {r["job"].get("trial_hash") for r in base.records}
        for one in predictions:
            if one["trial_hash"] not in hashes:
                continue
            other = next((c for c in cells if _follows(c, base, one["override"])), None)
            gain, interval = paired_ratio([] if other is None else pairs.pairs(other, base))
            if gain is not None:
                ends = None if interval is None else list(interval)
                found.append(one | {"measured_gain": gain, "measured_ci95": ends})
    return found


def _follows(cell: Cell, base: Cell, override: str) -> bool:
    key, _, value = override.partition("=")
    mine, theirs = pairs.settings(cell.overrides), pairs.settings(base.overrides)
    advised = mine.pop(key, "").lower() == value.lower()
    was = theirs.pop(key, None)
    return advised and mine == theirs and (was is None or was.lower() != value.lower())
