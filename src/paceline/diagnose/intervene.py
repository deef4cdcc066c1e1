"""diagnose=intervene: the ledger's verdict, with counter-runs that show what a fix can gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from paceline.diagnose.bound import diagnosis


@dataclass(frozen=True)
class Intervene:
    """`counter_runs`, after the measured window: cached_batch, the rate with a perfect loader;
    loader_alone, the loader's rate when nothing else is done; operators, how long large ones take,
    in three profiled steps; double_batch, the rate with twice the
    samples in each micro-batch; fused_optimizer, with the step in one kernel; forward_only; no
    optimizer; no_sync, the rate when no gradient travels, of several ranks under strategy=ddp. What
    saves cost is read off the job's own steps. `predictions`: as with diagnose=ledger."""

    predictions: str | None
    counter_runs: list[
        Literal[
            "cached_batch",
            "loader_alone",
            "operators",
            "double_batch",
            "fused_optimizer",
            "forward_only",
            "no_optimizer",
            "no_sync",
        ]
    ]

    def open(self, context: Any) -> Intervene:
        return self

    def explain(
        self, record: dict[str, Any], config: dict[str, Any], choices: dict[str, str]
    ) -> dict[str, Any]:
        return diagnosis(record, config, choices)
