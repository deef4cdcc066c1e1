"""Run a case as a user would: what paceline says of it, and what taking each plant out gains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.planted.cases import Case

PROGRAM = [sys.executable, "-m", "paceline"]
LIMIT_S = 240


@dataclass(frozen=True)
class Result:
    """`gains`: bound -> ratio of sustained rates when its plants are out. `truth`: the largest."""

    case: Case
    said: str
    share: float | None
    shares: dict[str, float]
    gains: dict[str, float]

    @property
    def truth(self) -> str:
        return max(self.gains, key=lambda bound: self.gains[bound])

    @property
    def true_share(self) -> float:
        """Of a step, that goes when the largest plant does."""
        return 1 - 1 / self.gains[self.truth]

    @property
    def right(self) -> bool:
        """Undetermined is an answer where no plant takes half of a step."""
        small = self.said == "undetermined" and self.true_share <= 0.5
        return self.said == self.truth or small


def run(case: Case, folder: Path) -> Result:
    """Three commands at most: the diagnosed job, a sweep that takes out each plant, and for what no
    key of the model takes out, the same job without it."""
    folder.mkdir(parents=True, exist_ok=True)
    with network(case.link_mbit) as prefix:
        record = job(case.words, folder, "said", prefix)
        inner = [b for b in case.plants if b not in ("communication", "checkpoint")]
        gains = _sweep([*case.words, f"model.without=nothing,{','.join(inner)}"], folder, prefix)
    if "communication" in case.plants:
        with network(None) as prefix:
            free = job([*case.words, "diagnose=off"], folder, "free", prefix)
        gains["communication"] = _rate(free) / _rate(record)
    if "checkpoint" in case.plants:
        gains["checkpoint"] = _sweep([*case.words, "checkpoint=sync,off"], folder, [])["off"]
    found = record["diagnosis"]
    return Result(case, found["bound"], found["share"], found.get("shares") or {}, gains)


@contextmanager
def network(mbit: int | None) -> Iterator[list[str]]:
    """Words that run a command where its ranks talk over a loopback of that rate; none for the
    host's own."""
    if mbit is None:
        yield []
        return
    # a name by which benchmarks/netns.py finds what a process left that was killed
    name = f"pl{os.getpid()}{uuid.uuid4().hex[:2]}n0"
    command(["ip", "netns", "add", name])
    try:
        command(["ip", "-n", name, "link", "set", "lo", "mtu", "1500", "up"])
        inside = ["ip", "netns", "exec", name]
        limit = ["tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms"]
        command([*inside, "tc", "qdisc", "add", "dev", "lo", "root", *limit])
        yield inside
    finally:
        command(["ip", "netns", "delete", name])


def job(words: list[str], folder: Path, name: str, prefix: list[str]) -> dict[str, Any]:
    """Run it in `folder`/`name`; its record."""
    command([*prefix, *PROGRAM, *words, f"hydra.run.dir={name}"], folder)
    record: dict[str, Any] = json.loads((folder / name / "result.json").read_text())
    return record


def _sweep(words: list[str], folder: Path, prefix: list[str]) -> dict[str, float]:
    """The one swept key's value -> ratio to the first, whose ratio isn't given."""
    name = f"sweep{len(list(folder.glob('sweep*')))}"
    command([*prefix, *PROGRAM, "-m", *words, "diagnose=off", f"hydra.sweep.dir={name}"], folder)
    table = json.loads((folder / name / "table.json").read_text())
    (key,) = table["swept"]
    for row in table["rows"]:
        if row["sustained_units_per_s"] is None:
            raise RuntimeError(f"{row['overrides']}: {row['state']}, {row['note']}")
    first, *rows = table["rows"]
    base = first["sustained_units_per_s"]
    return {row["overrides"][key]: row["sustained_units_per_s"] / base for row in rows}


def _rate(record: dict[str, Any]) -> float:
    return float(record["throughput"]["sustained_units_per_s"])


def command(words: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
