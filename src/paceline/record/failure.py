"""Where ranks leave their accounts of a failure, and which of several was the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MORE_MEMORY = (
    "the way out: a larger run.accumulation_steps (smaller micro-batches, the same training), a "
    "smaller data.global_batch_size, or precision=bf16; paceline -m hydra/sweeper=micro_batch "
    "finds the largest micro-batch that fits"
)
"""Ends the message of a job that ran out of memory."""


def failure_path(directory: Path, rank: int) -> Path:
    """The account of one rank, beside its log."""
    return directory / "log" / f"rank{rank}.failure.json"


def read_failures(directory: Path) -> list[dict[str, Any]]:
    """Every rank's account, the likely cause first: the earliest that is no broken collective,
    for that is what all other ranks report once one has died."""
    accounts = [json.loads(p.read_text()) for p in directory.glob("log/rank*.failure.json")]
    return sorted(accounts, key=lambda a: (a["communication"], a["time"]))
