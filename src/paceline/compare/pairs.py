"""Finished jobs as records, as cells, and as pairs of rates that were measured side by side."""

from __future__ import annotations

import fcntl
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paceline.record.schema import SCHEMA, empty_record, read_json
from paceline.types import ConfigError

Record = dict[str, Any]

MARKS = ("result.json", "status.json", "job.yaml")
"""A directory with one of these is a job's."""

UNFINISHED = (None, "pending", "running")


@dataclass(frozen=True)
class Cell:
    """One config of a sweep. `name` has no repeat suffix; `records`: its repeats and reruns."""

    name: str
    overrides: list[str]
    records: list[Record]

    @property
    def key(self) -> str | None:
        """The config_hash that all its records share."""
        key: str | None = self.records[0]["job"]["config_hash"]
        return key


def load(directories: list[Path]) -> list[Record]:
    """A record for each job directory; a sweep's directory stands for the jobs in it.

    Raises ConfigError for a path that is neither. A job that left no result, or a file that can't
    be read, gives a record whose status says so.
    """
    problems: list[str] = []
    found: dict[Path, Record] = {}
    for directory in directories:
        if is_job(directory):
            found.setdefault(directory.resolve(), _read(directory))
        elif is_sweep(directory):
            for record in _read_sweep(directory):
                found.setdefault(Path(record["job"]["dir"]).resolve(), record)
        else:
            what = "nothing to compare in it" if directory.is_dir() else "no such directory"
            problems.append(
                f"{directory}: {what}; give a job's directory (with result.json, status.json or "
                "job.yaml) or a sweep's (with sweep.json, or with jobs' directories in it)"
            )
    if problems:
        raise ConfigError(problems)
    return list(found.values())


def is_job(directory: Path) -> bool:
    return any((directory / mark).is_file() for mark in MARKS)


def is_sweep(directory: Path) -> bool:
    listed = (directory / "sweep.json").is_file()
    return listed or (directory.is_dir() and any(map(is_job, directory.iterdir())))


def load_sweep(directory: Path) -> dict[str, Any] | None:
    """The `sweep.json` of a sweep's directory, None without; ConfigError if it can't be read."""
    path = directory / "sweep.json"
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError([f"{path}: can't be read ({error})"]) from error


def not_run(sweep: dict[str, Any], records: list[Record]) -> list[Record]:
    """A `pending` record for each of the sweep's cells and repeats that has no record yet.

    An entry of `sweep["cells"]` holds the keys of a record's job section; one with a `state` and
    a `message` (a skipped cell) keeps them.
    """
    have = {_start_of(r["job"]) for r in records if not r["job"]["nudge"]}
    missing = []
    for entry in sweep.get("cells") or []:
        if _start_of(entry) in have:
            continue
        have.add(_start_of(entry))
        record = empty_record()
        record["job"] |= {k: v for k, v in entry.items() if k in record["job"]}
        record["status"]["state"] = entry.get("state") or "pending"
        record["status"]["message"] = entry.get("message")
        missing.append(record)
    return missing


def _start_of(job: dict[str, Any]) -> tuple[Any, int]:
    return job.get("config_hash"), job.get("repeat") or 0


def _read_sweep(sweep: Path) -> list[Record]:
    """Records of a sweep's job folders: as its cells are listed, then as they started."""
    listed = (load_sweep(sweep) or {}).get("cells") or []
    place = {entry.get("name"): i for i, entry in enumerate(listed)}

    def order(record: Record) -> tuple[int, str, str]:
        job = record["job"]
        started = "~" if job["started_at"] is None else str(job["started_at"])
        name = job["name"].partition(".")[0]  # a baseline measured again is NAME.1, NAME.2, ...
        return place.get(name, len(place)), started, job["name"]

    return sorted((_read(child) for child in sweep.iterdir() if is_job(child)), key=order)


def _read(directory: Path) -> Record:
    """The record in result.json; what job.yaml and status.json say where there is none."""
    record = empty_record()
    for add, name in ((_add_job, "job.yaml"), (_add, "result.json"), (_add_status, "status.json")):
        try:
            record = add(record, directory / name)
        except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
            if record["status"]["state"] in UNFINISHED:
                message = f"{directory / name} can't be read: {error!r}"
                record["status"] |= {"state": "failed", "kind": "error", "message": message}
    _settle(record["status"], directory)
    job = record["job"]
    job["name"] = job["name"] or directory.name
    job["dir"] = str(directory)  # where it lies now, wherever it was made
    job["overrides"] = job["overrides"] or []
    job["config_hash"] = job["config_hash"] or f"unknown:{directory.name}"
    return record


def _add(record: Record, path: Path) -> Record:
    return _merged(record, read_json(path) or {})


def _add_job(record: Record, path: Path) -> Record:
    if not path.is_file() or path.with_name("result.json").is_file():
        return record
    frozen = yaml.safe_load(path.read_text())
    config = frozen.get("config") or {}
    job = {
        "name": frozen.get("name"),
        "overrides": frozen.get("overrides"),
        "nudge": frozen.get("nudge"),
        "repeat": config.get("repeat"),
        "tag": config.get("tag"),
        "seed": (config.get("run") or {}).get("seed"),
    }
    requested = frozen.get("requested") or {}
    return _merged(record, {"job": job | frozen.get("identity", {}), "requested": requested})


def _add_status(record: Record, path: Path) -> Record:
    """status.json counts while the job has no result, or runs again over an old one."""
    said = read_json(path) or {}
    job, status = said.get("job") or {}, said.get("status") or {}
    again = status.get("state") in UNFINISHED and _locked(path.parent)
    if record["status"]["state"] in UNFINISHED or again:
        return _merged(record, {"job": job, "status": status})
    return record if record["job"]["config_hash"] else _merged(record, {"job": job})


def _merged(record: Record, more: dict[str, Any]) -> Record:
    """`more` section by section over `record`, so that every section is there."""
    if more.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema {more['schema']}; this paceline reads schema {SCHEMA}")
    merged = dict(record)
    for name, section in more.items():
        known = merged.get(name)
        if isinstance(known, dict) and not isinstance(section, dict):
            raise ValueError(f"{name} holds no object")
        merged[name] = known | section if isinstance(known, dict) else section
    return merged


def _settle(status: dict[str, Any], directory: Path) -> None:
    """An unfinished status is true only while a controller holds the directory."""
    if status["state"] not in UNFINISHED:
        return
    if _locked(directory):
        status["state"] = "running"
    elif status["state"] == "pending" and _locked(directory.parent):
        status["message"] = "its sweep hasn't come to it yet"
    else:
        status |= {"state": "interrupted", "message": "the controller ended before the job did"}


def _locked(directory: Path) -> bool:
    """Does a live process hold `.lock`? Asks by a shared lock, held for a moment."""
    try:
        with (directory / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def cells(records: list[Record]) -> list[Cell]:
    """Records grouped by config_hash, in order of first appearance."""
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(record["job"]["config_hash"], []).append(record)
    firsts = [(group[0]["job"], group) for group in groups.values()]
    return [Cell(_cell_name(job), job["overrides"] or [], group) for job, group in firsts]


def _cell_name(job: dict[str, Any]) -> str:
    name = str(job["name"] or job["config_hash"])
    return re.sub(rf"-r{job['repeat'] or 0}([-_.]\w+)?$", "", name)


def settings(overrides: list[str]) -> dict[str, str]:
    """Override key -> value, without `repeat`; a deletion's value is `deleted`."""
    found = {}
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+")
        if key.startswith("~"):
            key, value = key[1:], "deleted"
        if key != "repeat":
            found[key] = value
    return found


def swept_keys(cells: list[Cell]) -> list[str]:
    """Override keys whose value differs between cells; one that a cell lacks differs too."""
    each = [settings(cell.overrides) for cell in cells]
    keys = dict.fromkeys(key for one in each for key in one)
    return [key for key in keys if len({one.get(key) for one in each}) > 1]


def baseline(cells: list[Cell], name: str | None, sweep: dict[str, Any] | None) -> Cell:
    """The cell of that name, config_hash or job; else the sweep's baseline; else the first."""
    if name is None:
        wanted = (sweep or {}).get("baseline")
        return next((cell for cell in cells if cell.key == wanted), cells[0])
    by_name = [cell for cell in cells if cell.name == name]
    by_job = [c for c in cells if any(r["job"]["name"] == name for r in c.records)]
    by_hash = [cell for cell in cells if name and str(cell.key).startswith(name)]
    found = by_name or by_job or by_hash
    if len(found) == 1:
        return found[0]
    what = "names more than one cell" if found else "there is no such cell"
    there = ", ".join(f"{cell.name} ({cell.key})" for cell in found or cells)
    raise ConfigError([f"--baseline {name}: {what}; choose by name or hash: {there}"])


def rated(record: Record) -> bool:
    """Has this record a rate that counts: completed, valid, above 0?"""
    rate = record["throughput"]["sustained_units_per_s"]
    return (
        record["status"]["state"] == "completed"
        and record["validity"]["verdict"] == "valid"
        and isinstance(rate, int | float)
        and rate > 0
    )


def partner(record: Record, base: Cell) -> Record | None:
    """The baseline's record measured beside `record`: of the same rerun, the nearest in repeat
    (the same one, as a rule), out of the same sweep if it has one. Two may share a partner."""
    job = record["job"]
    there = [r for r in base.records if rated(r) and _rerun(r) == _rerun(record)]

    def distance(other: Record) -> tuple[bool, int, int]:
        repeat = other["job"]["repeat"] or 0
        elsewhere = other["job"]["sweep"] != job["sweep"]
        return elsewhere, abs(repeat - (job["repeat"] or 0)), repeat

    return min(there, key=distance, default=None)


def pairs(cell: Cell, base: Cell) -> list[tuple[float, float]]:
    """(rate of the cell, rate of the baseline), sustained units / s, measured side by side."""
    found = []
    for record in cell.records:
        beside = partner(record, base) if rated(record) else None
        if beside is not None:
            found.append((_rate(record), _rate(beside)))
    return found


def _rerun(record: Record) -> int:
    return record["job"]["rerun"] or 0


def _rate(record: Record) -> float:
    return float(record["throughput"]["sustained_units_per_s"])
