"""Where ranks leave their accounts of a failure, and which of several was the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def failure_path(directory: Path, rank: int) -> Path:
    """The account of one rank, beside its log."""
    return directory / "log" / f"rank{rank}.failure.json"


def read_failures(directory: Path) -> list[dict[str, Any]]:
    """Every rank's account, the likely cause first: the earliest that is no broken collective,
    for that is what all other ranks report once one has died."""
    accounts = [json.loads(p.read_text()) for p in directory.glob("log/rank*.failure.json")]
    return sorted(accounts, key=lambda a: (a["communication"], a["time"]))
