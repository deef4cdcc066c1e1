"""Directories as a submission leaves them, with whatever of a run in them."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir

from paceline.__main__ import config_dir
from paceline.checkpoint.shelf import Manifest, Shelf
from paceline.compare import pairs
from paceline.controller.directory import FROZEN
from paceline.controller.frozen import freeze
from paceline.controller.plan import Job, make_job
from paceline.controller.slurm.settle import APART_S, settle
from paceline.controller.slurm.state import JobState
from paceline.record.schema import empty_record, read_json, write_json
from tests.conftest import TINY


def plan(directory: Path, *words: str) -> Job:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        root = compose("config", [*TINY, *words], return_hydra_config=True)
        return make_job(root, directory)


class Sweep:
    """Submitted cells, each with its own SLURM job, or all in the same one."""

    def __init__(self, root: Path, planned: Job) -> None:
        self.root, self.planned = root, planned

    def submitted(self, *names: str, mode: str = "jobs", age_s: float = 0.0) -> None:
        """As the SLURM jobs 11, 12, ..., or all as 11; `age_s` ago."""
        numbers = ["11"] * len(names) if mode == "allocation" else map(str, range(11, 99))
        self.numbered(dict(zip(names, numbers, strict=False)), mode, age_s)

    def numbered(self, ids: dict[str, str], mode: str = "jobs", age_s: float = 0.0) -> None:
        """`ids`: name of a cell -> number of its SLURM job."""
        jobs = []
        for name, id in ids.items():
            cell = self.root / name
            (cell / "slurm").mkdir(parents=True)
            job = replace(self.planned, directory=cell, sweep="s", config_hash=name)
            freeze(job, cell / FROZEN)
            folder = self.root / "slurm" if mode == "allocation" else cell / "slurm"
            jobs.append({"name": name, "id": id, "script": "", "log": str(folder / f"{id}.log")})
        book = {"mode": mode, "command": "", "submitted_at": "", "jobs": jobs}
        (self.root / "slurm").mkdir(exist_ok=True)
        path = self.root / "slurm" / "jobs.json"
        write_json(path, book | {"max_requeues": 2, "collector": None})
        os.utime(path, (time.time() - age_s,) * 2)

    def began(self, name: str, state: str = "running", step: int | None = None) -> None:
        """Its controller has run: as far as `step`, to the end `state`."""
        record = empty_record()
        record["job"] |= {
            "name": name,
            "config_hash": name,
            "started_at": "2026-11-30T13:00:00.000+00:00",
        }
        record["status"] |= {"state": state}
        if state != "running":
            record["throughput"]["steady_units_per_s"] = 5.0
            write_json(self.root / name / "result.json", record)
        said = {"job": record["job"], "status": record["status"]}
        write_json(self.root / name / "status.json", said)
        if step is not None:
            (self.root / name / "log").mkdir()
            account = {"step": step, "steps": 30, "units_per_s": 7.0}
            write_json(self.root / name / "log" / "progress.json", account)

    def saved(self, name: str, step: int) -> None:
        shelf = Shelf(self.root / name / "checkpoint")
        shelf.stage(step)
        shelf.commit(Manifest(step, "torch", "", {"world_size": 1}, {}, {}))

    def says(self, name: str, text: str, phase: str = "run") -> None:
        """The log of its SLURM job, and how far the script came."""
        for entry in self.book()["jobs"]:
            if entry["name"] == name:
                Path(entry["log"]).write_text(text)
                (Path(entry["log"]).parent / "phase").write_text(f"{phase}\n")

    def book(self) -> dict[str, Any]:
        return read_json(self.root / "slurm" / "jobs.json") or {}

    def twice(self, *states: JobState) -> list[str]:
        """Two looks that are far enough apart; what got a record in the second one."""
        by_id = {state.id: state for state in states}
        assert settle(self.root, by_id) == []
        self.later(APART_S)
        return settle(self.root, by_id)

    def later(self, seconds: float) -> None:
        """As if the looks so far were older."""
        path = self.root / "slurm" / "seen_over.json"
        write_json(path, {id: when - seconds for id, when in (read_json(path) or {}).items()})

    def record(self, name: str) -> dict[str, Any]:
        (read,) = pairs.load([self.root / name])  # by the reader that tables use
        written = json.loads((self.root / name / "status.json").read_text())["status"]
        assert written == read["status"]
        return read
