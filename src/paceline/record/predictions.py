"""What was predicted of advice and what it brought: one JSON object a line, kept over jobs."""

from __future__ import annotations

import fcntl
import json
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Prediction = dict[str, Any]
"""trial_hash, override; job (directory), at, unit; predicted_gain predicted_bounds basis same_work;
measured_gain measured_ci95 measured_in, None until a sweep held the cell."""

KEPT = ("override", "predicted_gain", "predicted_bounds", "basis", "same_work")


def of(record: dict[str, Any]) -> list[Prediction]:
    """Those of a finished job. `trial_hash` names all that is measured in it."""
    job = record["job"]
    return [
        {"trial_hash": job["trial_hash"], "job": job["dir"], "at": job["started_at"]}
        | {key: advice[key] for key in KEPT}
        | {"measured_gain": None, "measured_ci95": None, "measured_in": None}
        for advice in record["diagnosis"]["advice"]
        if advice["predicted_gain"] is not None
    ]


def load(path: Path) -> list[Prediction]:
    """Lines that are no predictions, as a crash may leave one, are left out."""
    found = []
    try:
        lines = path.read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    for line in lines:
        try:
            one = json.loads(line)
            found.append({"trial_hash": one["trial_hash"], "override": one["override"]} | one)
        except (ValueError, TypeError, KeyError):
            continue
    return found


def keep(path: Path, new: list[Prediction]) -> None:
    """Add or replace, one for each trial and override; one that was measured keeps its figures
    until it is measured again."""
    if not new:
        return

    def merged(known: list[Prediction]) -> list[Prediction]:
        at = {(p["trial_hash"], p["override"]): p for p in known}
        for one in new:
            key = (one["trial_hash"], one["override"])
            if one["measured_gain"] is not None or at.get(key, one)["measured_gain"] is None:
                at[key] = one
        return list(at.values())

    _change(path, merged)


def track_record(predictions: list[Prediction]) -> dict[str, Any] | None:
    """Of those that were measured: how many, the median relative error, how many within their
    bounds; None where none was."""
    done = [p for p in predictions if p["measured_gain"] is not None]
    if not done:
        return None
    errors = [abs(p["predicted_gain"] / p["measured_gain"] - 1) for p in done]
    within = [
        p["predicted_bounds"][0] <= p["measured_gain"] <= p["predicted_bounds"][1] for p in done
    ]
    return {"checked": len(done), "median_error": statistics.median(errors), "within": sum(within)}


def _change(path: Path, change: Callable[[list[Prediction]], list[Prediction]]) -> None:
    with _locked(path):
        lines = [json.dumps(one) for one in change(load(path))]
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text("\n".join(lines) + "\n")
        os.replace(temporary, path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Several commands may end at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
