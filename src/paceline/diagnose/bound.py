"""diagnose=ledger: what bounds a job, read off the phases of its steady steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.diagnose.straggler import straggler

CLASSES = {
    "input": ("data_wait", "to_device"),
    "compute": ("forward", "backward"),
    "communication": ("comm",),
    "host": ("optimizer", "other"),
    "checkpoint": ("checkpoint",),
}
"""Which phases speak for which bound."""

BOUND_AT = 0.5
"""A class bounds the job when it takes at least this share of a steady step; else undetermined."""


@dataclass(frozen=True)
class FromLedger:
    def open(self, context: Any) -> FromLedger:
        return self

    def explain(self, record: dict[str, Any]) -> dict[str, Any]:
        """The bound, its share and the rank it is about; `undetermined` when nothing takes half,
        or when it may be compute or communication. A straggler comes before all: the others'
        phases wait for it."""
        phases, wall_s = record["ledger"]["steady_phases_s"], record["ledger"]["steady_wall_s"]
        if not wall_s:
            return {"bound": "undetermined", "evidence": ["no steady step was measured"]}
        shares = {
            name: sum(phases.get(p, 0.0) for p in members) / wall_s
            for name, members in CLASSES.items()
        }
        name, share = max(shares.items(), key=lambda item: item[1])
        found = name if share >= BOUND_AT else "undetermined"
        evidence = [f"{phase} {phases[phase] / wall_s:.1%}" for phase in phases if phases[phase]]
        several = record["effective"].get("world_size", 1) > 1
        if several and "comm" not in phases:
            evidence.append(
                "forward and backward contain the ranks' communication, which isn't told apart; a "
                "rank that is slow in them isn't seen"
            )
            found = "undetermined" if found == "compute" else found
        late = straggler(record)
        if late is not None:
            return late | {"evidence": [*late["evidence"], *evidence]}
        return {
            "bound": found,
            "rank": record["ledger"]["slowest_rank"],
            "share": share if found == name else None,
            "evidence": evidence,
        }
