"""Where ranks leave their accounts of a failure, and which of several was the cause."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MORE_MEMORY = (
    "the way out: a larger run.accumulation_steps (smaller micro-batches, the same training), a "
    "smaller data.global_batch_size, or precision=bf16; paceline -m hydra/sweeper=micro_batch "
    "finds the largest micro-batch that fits"
)
"""Ends the message of a job that ran out of memory."""

OWN_ERRORS = ("DataError", "Nonfinite", "NotTraining", "CheckpointError")
"""Their messages are whole sentences; any other error is shown with its type."""


def failure_path(directory: Path, rank: int) -> Path:
    """The account of one rank, beside its log."""
    return directory / "log" / f"rank{rank}.failure.json"


def read_failures(directory: Path) -> list[dict[str, Any]]:
    """Every rank's account, the likely cause first."""
    return in_order(json.loads(p.read_text()) for p in directory.glob("log/rank*.failure.json"))


def in_order(accounts: Any) -> list[dict[str, Any]]:
    """The earliest that is no broken collective first, for that is what all other ranks report
    once one has died."""
    return sorted(accounts, key=lambda a: (a["communication"], a["time"]))


def cause(
    failures: list[dict[str, Any]],
    exits: Mapping[int, int],
    world_size: int,
    local_world_size: int,
    lost: Mapping[int, str],
    starved: bool,
    log: str = "log",
    nodes: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Kind, message, rank, phase, step and traceback of a failed job: of the rank whose account
    names a cause of its own, else of the one that left no account.

    A rank that dies without a word breaks the collectives of all others at once; one that is alive
    and doesn't answer lets them wait until they time out. `exits`: exit codes of ranks that were
    seen to end first. `lost`: node -> what became of it. `starved`: memory ran out meanwhile.
    `log`: where a node's logs lie, in its directory. `nodes`: that the ranks ran on, in their
    order, by the numbers that `lost` and directories have; None: all from 0 on.
    """
    nodes = nodes or range(world_size)
    silent = sorted(set(range(world_size)) - {f["rank"] for f in failures})
    broken = [f["rank"] for f in failures if f["communication"]]
    first = failures[0] if failures else None
    if first is not None and not (first["communication"] and silent):
        keys = ("kind", "phase", "step", "rank", "traceback")
        found = {key: first[key] for key in keys} | {"message": _sentence(first)}
    else:
        found = {key: first[key] if first else None for key in ("phase", "step")}
        node_of = {rank: nodes[rank // local_world_size] for rank in silent}
        rank, died = _of_silent(silent, first, exits, node_of, lost, starved)
        node = node_of[rank]
        where = f"see {f'node{node}/' if node else ''}{log}/rank{rank}.log"
        sentence, _, way = died["message"].partition("\n")
        said = f"{sentence}; {where}{' on its node' if node else ''}" + (f"\n{way}" if way else "")
        found |= died | {"rank": rank, "message": said}
    others = [r for r in sorted({*silent, *broken}) if r != found["rank"]]
    if others:
        found["message"] += f"\n{_ranks(others)}: terminated because of rank {found['rank']}"
    return found


def _of_silent(
    silent: list[int],
    first: dict[str, Any] | None,
    exits: Mapping[int, int],
    node_of: Mapping[int, int],
    lost: Mapping[int, str],
    starved: bool,
) -> tuple[int, dict[str, Any]]:
    """Which of the ranks without an account was the cause, and what became of it. Where a node is
    lost, the connections to it break: that may abort a rank, but never kills it."""
    dead = next((r for r in exits if r in silent), None)
    gone = next((r for r in silent if node_of[r] in lost), None)
    if gone is not None and (dead is None or exits[dead] != -signal.SIGKILL):
        node = node_of[gone]
        return gone, {"kind": "worker_died", "message": f"rank {gone}: node {node} {lost[node]}"}
    if dead is None and first is not None and first["timed_out"]:
        waited = re.sub(r"^\[\S+\] ", "", first["message"])
        said = (
            f"{_ranks(silent)} did not answer, rank {first['rank']} waited in vain ({waited}); a "
            "collective may wait launch.timeout_s, launch.startup_timeout_s in the first step"
        )
        return silent[0], {
            "kind": "comm_timeout",
            "traceback": first["traceback"],
            "message": said,
        }
    rank = silent[0] if dead is None else dead
    code = exits.get(rank)
    if starved and code == -signal.SIGKILL:
        return rank, {"kind": "oom", "message": f"{_death(rank, code)}\n{MORE_MEMORY}"}
    return rank, {"kind": "worker_died", "message": _death(rank, code)}


def _ranks(ranks: Iterable[int]) -> str:
    listed = list(map(str, ranks))
    return f"rank{'s' * (len(listed) > 1)} {', '.join(listed)}"


def _sentence(failure: dict[str, Any]) -> str:
    kind, message = failure["type"], failure["message"]
    in_our_words = failure["explained"] or kind in OWN_ERRORS or kind == message
    return message if in_our_words else f"{kind}: {message}"


def _death(rank: int, code: int | None) -> str:
    if code is None:
        return f"rank {rank} ended without a word"
    if code >= 0:
        return f"rank {rank} left with exit code {code}"
    name = signal.Signals(-code).name
    why = " (as the kernel does when memory runs out)" if name == "SIGKILL" else ""
    return f"rank {rank} was ended by {name}{why}"
