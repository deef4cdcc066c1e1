"""Counter-runs after the measured window: the job goes on with one thing changed, in turns with
the job as it is. They come last and put nothing back: the record is taken before them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.rank import changes
from paceline.rank.changes import Change
from paceline.rank.comm import unused_in_some_step
from paceline.rank.ledger import STEADY, Ledger
from paceline.rank.loading import loader_alone
from paceline.rank.operators import operators
from paceline.rank.train import Parts, beyond_training, train
from paceline.rank.world import gather, max_over_ranks
from paceline.record.economics import Turns, compile_pays, gain
from paceline.types import Measure

PAIRS = 5
MOST_STEPS = 20
"""Turns of each kind, and the most steps of one: all turns together take about a window."""


def counter_runs(
    parts: Parts, asked: list[str], measure: Measure, step: int, record: dict[str, Any] | None
) -> dict[str, Any]:
    """The counter-runs `asked` for, and eager steps where the compiler wants them: sections of the
    record, for rank 0, whose `record` so far this needs. A collective."""
    wanted, reasons = _wanted(parts, asked)
    if not wanted:
        return {"reasons": reasons} if reasons else {}
    if parts.state.data.num_batches() is not None:
        why = f"counter-runs ({', '.join(wanted)}): the data source ends with the training"
        return {"reasons": [*reasons, why]}
    parts.progress.end()
    found: dict[str, Any] = {"counter_runs": [], "reasons": reasons}
    for name in wanted:
        if name == "loader_alone":
            steps = _steps_in(parts, measure.window_s / 2, 10_000)
            found["counter_runs"].append({"name": name} | loader_alone(parts, steps))
            continue
        if name == "operators":
            seen = operators(parts, step)
            found["counter_runs"] += [] if seen is None else [{"name": name} | seen]
            continue
        one = changes.on_one_batch(parts) if name in ON_ONE_BATCH else parts
        turns = take_turns(one, step, measure.window_s, CHANGES[name])
        if turns is None:
            reasons.append(f"counter-run {name}: stopped before it was done")
            return found
        if name == "eager":
            extra_s = record["compile"]["extra_s"] if record else 0.0
            found["compile"] = compile_pays(turns, extra_s)
        else:
            times = 2 if name == DOUBLE_BATCH else 1
            found["counter_runs"].append({"name": name} | gain(turns, times))
    return found


def take_turns(parts: Parts, step: int, window_s: float, change: Change) -> Turns | None:
    """Mean steps of `PAIRS` turns with `change` and as many without, one after the other, the
    slowest rank's; None if all ranks agreed to stop. A turn is `window_s` / (2 PAIRS) long, 1 to
    20 steps and no less than the workers' queue, after those that the pause before it disturbs."""
    parts = beyond_training(parts)
    # one, where steps are slow; whole bursts of the workers
    steps = max(_steps_in(parts, window_s / (2 * PAIRS), MOST_STEPS), parts.refill_steps)
    base, other = [], []
    for _ in range(PAIRS):
        as_it_is = _turn(parts, step, steps)
        with change(parts) as changed:
            otherwise = _turn(changed, step, steps)
        if as_it_is is None or otherwise is None:
            return None
        base.append(as_it_is)
        other.append(otherwise)
    both = max_over_ranks(torch.tensor([base, other], dtype=torch.float64), parts.world).numpy()
    return Turns(both[0], both[1])


def _wanted(parts: Parts, asked: list[str]) -> tuple[list[str], list[str]]:
    """The counter-runs in their order, and why others can't be. A collective."""
    why_not = _why_not(parts)
    wanted = [name for name in ORDER if name in asked and name not in why_not]
    reasons = [f"counter-run {name}: {why_not[name]}" for name in asked if why_not.get(name)]
    # ranks drift apart without their gradients: what needs them alike comes before
    at = wanted.index(NO_SYNC) if NO_SYNC in wanted else len(wanted)
    wanted[at:at] = ["eager"] if parts.compile.compare_eager else []
    if parts.world.alone:
        return wanted, reasons
    ddp = parts.model if isinstance(parts.model, DistributedDataParallel) else None
    unused = gather(unused_in_some_step(parts), parts.world)
    if ddp is not None and ddp.find_unused_parameters and all(names == [] for names in unused):
        if "forward" in vars(ddp):
            reasons.append("counter-run unused_search: DDP is compiled (strategy.compile=outside)")
        else:
            wanted[at:at] = [UNUSED_SEARCH]
    return wanted, reasons


def _why_not(parts: Parts) -> dict[str, str]:
    """Counter-run -> why it can't be here; empty where it would be beside the point."""
    found: dict[str, str] = {}
    ddp = isinstance(parts.model, DistributedDataParallel)
    if parts.world.alone:
        found[NO_SYNC] = ""
    elif not ddp:
        found[NO_SYNC] = "only strategy=ddp can leave out its reductions"
        found["forward_only"] = "what shards parameters needs its backward"
    fused = changes.why_not_fused(parts)
    if fused is not None:
        found["fused_optimizer"] = fused
    if not _has_room(parts):
        found[DOUBLE_BATCH] = "twice the batch may not fit: over 45 % of the memory was used"
    return found


def _has_room(parts: Parts) -> bool:
    """Would a batch twice the size surely fit, on all ranks? A collective."""
    if parts.world.device.type == "cuda":
        total = torch.cuda.get_device_properties(parts.world.device).total_memory
        used = torch.cuda.max_memory_allocated(parts.world.device) / total
    else:
        local = parts.world.local_world_size
        used = psutil.Process().memory_info().rss / (psutil.virtual_memory().available / local)
    return float(max_over_ranks(torch.tensor([used], dtype=torch.float64), parts.world)[0]) < ROOMY


NO_SYNC, UNUSED_SEARCH, DOUBLE_BATCH = "no_sync", "unused_search", "double_batch"

ROOMY = 0.45
"""Of the memory, at most, for a batch twice the size: activations double, the rest stays."""

ORDER = (
    "cached_batch",
    "loader_alone",
    "operators",
    DOUBLE_BATCH,
    "fused_optimizer",
    "forward_only",
    "no_optimizer",
    NO_SYNC,
)
"""Those that can be asked for."""

ON_ONE_BATCH = (UNUSED_SEARCH, DOUBLE_BATCH)
"""Both kinds of turns on one batch that is there. Without the search, a batch that leaves a
parameter unused, as none did so far, would end the job; twice the batch must not be twice the
loading."""

CHANGES: dict[str, Change] = {
    "eager": changes.eager,
    "cached_batch": changes.cached_batch,
    DOUBLE_BATCH: changes.double_batch,
    "fused_optimizer": changes.fused_optimizer,
    "forward_only": changes.forward_only,
    "no_optimizer": changes.no_optimizer,
    NO_SYNC: changes.no_sync,
    UNUSED_SEARCH: changes.unsearched,
}


def _turn(parts: Parts, first: int, steps: int) -> float | None:
    """Mean step, seconds; None when it was stopped. The pause before it left the queue full. Not
    the median: workers deliver in bursts."""
    skipped = max(1, parts.refill_steps)
    ledger = Ledger(parts.world.device, parts.run.accumulation_steps)
    turn = replace(parts, ledger=ledger, refill_steps=skipped)
    last = first + skipped + steps
    if train(turn, first, last, extra=True) < last:
        return None
    done = ledger.steps()
    steady = done.step_s[done.tag == STEADY]
    return float(np.mean(steady if len(steady) else done.step_s))


def _steps_in(parts: Parts, seconds: float, most: int) -> int:
    """Steps that the job does in `seconds` with all that recurs in them, 1 to `most`, the same on
    all ranks."""
    done = parts.ledger.steps()
    steady = np.flatnonzero(done.tag == STEADY)
    since = done.step_s[steady[0] if len(steady) else 0 :]
    steps = min(max(math.ceil(seconds / max(float(np.mean(since)), 1e-9)), 1), most)
    return int(max_over_ranks(torch.tensor([steps]), parts.world)[0])
