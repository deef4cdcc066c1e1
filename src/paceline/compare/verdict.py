"""Faster, slower, the same, or can't tell: a cell against the baseline, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.compare.numerics import Agreement, agree
from paceline.compare.pairs import Cell, Record, pairs, partner, rated
from paceline.record.measure import t_interval

SAME_MARGIN = 0.02
"""A difference this small is no difference: `same` needs the whole interval within 1 +- this."""

ONE_REPEAT = "one repeat ranks nothing; add repeat=range(3)"

WORST_FIRST = (
    "failed",
    "invalid",
    "interrupted",
    "preempted",
    "skipped",
    "running",
    "pending",
    "completed",
)

WORST_AGREEMENT = ("diverged", None, "within", "equal")
NOT_JUDGED = Agreement(None, None, None, None)

_LARGEST = 700.0  # exp() of more overflows


@dataclass(frozen=True)
class Verdict:
    """`ratio`: sustained rate over the baseline's, None where it must not be ranked.

    `verdict`: baseline, faster, slower, same, cant_tell, other_work or invalid.
    """

    ratio: float | None
    ratio_ci95: tuple[float, float] | None
    verdict: str
    note: str | None


def judge(cell: Cell, base: Cell, found: Agreement) -> Verdict:
    """Rank a cell by the geometric mean of its paired ratios and their t interval. `found`: its
    `agreement` with the baseline."""
    valid = [r for r in cell.records if rated(r)]
    if not valid:
        return Verdict(None, None, "invalid", why_unrated(worst(cell.records)))
    if cell.key == base.key:
        return Verdict(1.0, None, "baseline", None)
    if found.verdict == "diverged":
        return Verdict(None, None, "invalid", f"diverged: {found.reason}")
    if not any(rated(r) for r in base.records):
        return Verdict(None, None, "cant_tell", f"the baseline {base.name} has no valid rate")
    ratio, interval = paired_ratio(pairs(cell, base))
    if valid[0]["job"]["work_hash"] != base.records[0]["job"]["work_hash"]:
        note = "other work than the baseline's: rates compare, losses don't"
        return Verdict(ratio, interval, "other_work", note)
    if ratio is None:
        note = "never measured beside the baseline; run the sweep's command again"
        return Verdict(None, None, "cant_tell", note)
    if interval is None:
        return Verdict(ratio, None, "cant_tell", ONE_REPEAT)
    return Verdict(ratio, interval, _verdict(*interval), None)


def paired_ratio(
    rates: list[tuple[float, float]],
) -> tuple[float | None, tuple[float, float] | None]:
    """Geometric mean of the ratios and its 95 % interval, by t on their logarithms."""
    if not rates:
        return None, None
    logs = t_interval(np.array([math.log(mine / theirs) for mine, theirs in rates]))
    if logs.low is None or logs.high is None:
        return _exp(logs.value), None
    return _exp(logs.value), (_exp(logs.low), _exp(logs.high))


def agreement(cell: Cell, base: Cell, nudged: list[Record]) -> Agreement:
    """The numerics gates over all repeats: the worst verdict of any, the largest deviation. A job
    that its own gates found wrong has diverged whatever its losses are."""
    known = next((r for r in base.records if rated(r)), None)
    wrong = next((r for r in cell.records if r["validity"]["verdict"] == "diverged"), None)
    if wrong is not None:
        off = None if known is None else agree(wrong, known, nudged).deviation
        return Agreement("diverged", "gradient", wrong["validity"]["reasons"][0], off)
    if cell.key == base.key or known is None:
        return NOT_JUDGED
    found = [
        agree(record, partner(record, base) or known, nudged)
        for record in cell.records
        if rated(record)
    ]
    if not found:
        return NOT_JUDGED
    largest = max((f.deviation for f in found if f.deviation is not None), default=None)
    return replace(min(found, key=lambda f: WORST_AGREEMENT.index(f.verdict)), deviation=largest)


def worst(records: list[dict[str, Any]]) -> dict[str, Any]:
    """The record that a reader must know of first."""
    place = {state: i for i, state in enumerate(WORST_FIRST)}
    return min(records, key=lambda r: place.get(r["status"]["state"], 0))


def why_unrated(record: dict[str, Any]) -> str:
    """Why a record has no rate that counts, in a line."""
    status, validity = record["status"], record["validity"]
    state = status["state"]
    if state == "pending":
        return "not run"
    if state == "skipped":
        return _first_line(status["message"]) or "skipped"
    if state in ("completed", "invalid"):
        reasons = validity["reasons"] or ["it has no sustained rate"]
        return f"{validity['verdict'] or state}: {_first_line(reasons[0])}"
    words = [state, status["kind"], _first_line(status["message"])]
    return ": ".join(word for word in words if word)


def _verdict(low: float, high: float) -> str:
    if low > 1:
        return "faster"
    if high < 1:
        return "slower"
    within = low >= 1 - SAME_MARGIN and high <= 1 + SAME_MARGIN
    return "same" if within else "cant_tell"


def _exp(log: float) -> float:
    return math.exp(max(-_LARGEST, min(log, _LARGEST)))


def _first_line(text: object) -> str:
    return next(iter(str(text or "").strip().splitlines()), "")
