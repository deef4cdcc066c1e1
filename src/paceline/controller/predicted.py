"""Predictions of advice: kept when a job ends, held against what a sweep measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from paceline.compare import advised, pairs
from paceline.controller.plan import Job
from paceline.record import predictions
from paceline.record.schema import read_json, write_json
from paceline.report import advice


def keep(job: Job, record: dict[str, Any]) -> None:
    """In the file that `diagnose.predictions` names, if it names one. A file that can't be written
    costs the prediction, not the job."""
    kept = job.config["diagnose"].get("predictions")
    if kept is None:
        return
    try:
        predictions.keep(Path(kept), predictions.of(record))
    except OSError as error:
        print(f"WARNING diagnose.predictions={kept}: not kept ({error})", flush=True)


def check(
    records: list[pairs.Record], sweep: dict[str, Any] | None, sweep_dir: Path, console: Console
) -> None:
    """Fill in what advice gained, where these cells tell, in the file of predictions and in the
    records that gave it; and say so."""
    kept = (sweep or {}).get("predictions")
    if kept is None:
        return
    known = predictions.load(Path(kept))
    found = advised.measured(records, known)
    found = [one | {"measured_in": str(sweep_dir)} for one in found]
    predictions.keep(Path(kept), found)
    for one in found:
        _fill_in(Path(one["job"]) / "result.json", one)
    for line in advice.checked_lines(found, predictions.load(Path(kept))):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _fill_in(path: Path, measured: dict[str, Any]) -> None:
    """The record may be gone, or be another's by now."""
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return
    if record is None or record["job"].get("trial_hash") != measured["trial_hash"]:
        return
    for one in record["diagnosis"]["advice"]:
        if one["override"] == measured["override"]:
            one |= {key: measured[key] for key in ("measured_gain", "measured_ci95")}
    write_json(path, record)
