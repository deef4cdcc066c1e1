"""diagnose=intervene: the ledger's verdict, with counter-runs that show what a fix can gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from paceline.diagnose.bound import FromLedger


@dataclass(frozen=True)
class Intervene:
    """`counter_runs`, after the measured window: cached_batch, the rate with a perfect loader;
    loader_alone, the loader's rate when nothing else is done; no_sync, the rate when no gradient
    travels, of several ranks under strategy=ddp."""

    counter_runs: list[Literal["cached_batch", "loader_alone", "no_sync"]]

    def open(self, context: Any) -> Intervene:
        return self

    def explain(self, record: dict[str, Any]) -> dict[str, Any]:
        found = FromLedger().explain(record)
        found["evidence"] = found["evidence"] + [_said(run) for run in record["counter_runs"]]
        return found


def _said(run: dict[str, Any]) -> str:
    name = run["name"].replace("_", " ")
    if "speedup" in run:
        return f"{name}: {run['speedup']:.3f} times the rate"
    return f"{name}: {run['units_per_s']:,.0f} units/s"
