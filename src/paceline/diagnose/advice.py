"""What to type next: for each large share of a step an override, and what it should gain and why.

A prediction says what it rests on. Where the job itself gives no ground for one (how fast will a
compiled step be?), there are only bounds: nothing gained, and all of that share gone.
"""

from __future__ import annotations

import shlex
from typing import Any

from paceline.diagnose.advisors import ADVISORS, WORTH
from paceline.diagnose.case import Case
from paceline.diagnose.shares import Shares

DEADBAND = 0.03
"""A predicted gain below this isn't advised: two processes of one program differ by as much."""


def advice(
    record: dict[str, Any], found: Shares, config: dict[str, Any], choices: dict[str, str]
) -> list[dict[str, Any]]:
    """For each share that is worth it, the largest first: `override`; `why`; `predicted_gain`, a
    ratio of sustained rates, or None where nothing can be predicted; `predicted_bounds` of it, None
    where the share isn't one that can go; `basis` of the prediction; `same_work`: is it still the
    same training; `check`: the sweep that measures it; `measured_gain`, once it has."""
    if found.step_s is None:
        return []
    runs = {run["name"]: run for run in record["counter_runs"]}
    case = Case(record, found.of, found.step_s, config, choices, runs)
    ranked = sorted(ADVISORS, key=case.share, reverse=True)
    # what shards parameters can't tell its communication: it is advised on all the same
    untold = {"communication"} & set(found.unknown)
    worth = [bound for bound in ranked if case.share(bound) >= WORTH or bound in untold]
    given = {one["override"]: one for bound in worth for one in ADVISORS[bound](case)}
    clear = [one for one in given.values() if not _within_noise(one["predicted_gain"])]
    return [one | {"check": _check(case, one), "measured_gain": None} for one in clear]


def _within_noise(gain: float | None) -> bool:
    return gain is not None and gain < 1 + DEADBAND


def _check(case: Case, one: dict[str, Any]) -> str:
    """The sweep that measures it: the job as it is, and with the override, three times."""
    key, _, value = one["override"].partition("=")
    now = _now(case, key)
    typed = case.record["job"]["overrides"] or []
    kept = [o for o in typed if o.partition("=")[0] not in (key, "repeat")]
    if case.choices.get("diagnose") != "ledger":  # its counter-runs need not be done in each cell
        ours = ("diagnose=", "diagnose.counter_runs=")
        kept = [o for o in kept if not o.startswith(ours)] + ["diagnose=ledger"]
    return shlex.join(["paceline", "-m", "repeat=range(3)", *kept, f"{key}={now},{value}"])


def _now(case: Case, key: str) -> str:
    if key in case.choices:
        return str(case.choices[key])
    node: Any = case.config
    for part in key.split("."):
        node = node[part]
    return "null" if node is None else str(node).lower() if isinstance(node, bool) else str(node)
