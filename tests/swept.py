"""A sweep's command and what its directory held right after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.conftest import Command, Done


@dataclass
class Swept:
    """`files`: the bytes of each job directory's result.json."""

    done: Done
    records: list[dict[str, Any]]
    table: dict[str, Any]
    files: dict[str, bytes]

    def cell(self, *overrides: str) -> dict[str, Any]:
        """The record with these overrides, the newest of several."""
        found = [r for r in self.records if set(overrides) <= set(r["job"]["overrides"])]
        return max(found, key=lambda r: str(r["job"]["started_at"]))

    def row(self, *values: str) -> dict[str, Any]:
        """The row with these values of the swept keys."""
        (only,) = [r for r in self.table["rows"] if tuple(r["overrides"].values()) == values]
        return only


def sweep(command: Command, *words: str, **options: Any) -> Swept:
    """Run `-m words` in the one sweep directory `outputs/sweeps/s` of the command's folder."""
    return look(command("-m", *words, "hydra.sweep.dir=outputs/sweeps/s", **options))


def look(done: Done) -> Swept:
    files = {p.parent.name: p.read_bytes() for p in done.cwd.glob("outputs/sweeps/*/*/result.json")}
    return Swept(done, done.jobs("outputs/sweeps/*"), done.table(), files)
