"""Counter-runs after the measured window: the job goes on with one thing changed, in turns with
the job as it is. They come last and put nothing back: the record is taken before them."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.rank.comm import unused_in_some_step
from paceline.rank.ledger import STEADY, Ledger
from paceline.rank.train import Parts, beyond_training, train
from paceline.rank.world import gather, max_over_ranks
from paceline.record.economics import Turns, compile_pays, gain
from paceline.types import Measure

PAIRS = 5
MOST_STEPS = 20
"""Turns of each kind, and the most steps of one: all turns together take about a window."""

FEWEST_STEPS = 4
"""Of the loader alone."""

Change = Callable[[Parts], AbstractContextManager[Parts]]


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
            step_s = loader_alone(parts, measure.window_s)
            found["counter_runs"].append({"name": name, "step_s": step_s})
            continue
        one = _on_one_batch(parts) if name == UNUSED_SEARCH else parts
        turns = take_turns(one, step, measure.window_s, CHANGES[name])
        if turns is None:
            reasons.append(f"counter-run {name}: stopped before it was done")
            return found
        if name == "eager":
            extra_s = record["compile"]["extra_s"] if record else 0.0
            found["compile"] = compile_pays(turns, extra_s)
        else:
            found["counter_runs"].append({"name": name} | gain(turns))
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


def loader_alone(parts: Parts, window_s: float) -> float:
    """Seconds that a step's batches take, the slowest rank's, when nothing else is done, over as
    many steps as the job does in half a window, or twice the workers' queue, for they deliver in
    bursts. What they had ready is taken first."""
    micro = parts.run.accumulation_steps
    steps = max(_steps_in(parts, window_s / 2, 10_000), 2 * parts.refill_steps, FEWEST_STEPS)
    for _ in range(parts.refill_steps * micro):
        next(parts.batches)
    start = time.perf_counter()
    for _ in range(steps * micro):
        next(parts.batches)
    spent = torch.tensor([(time.perf_counter() - start) / steps], dtype=torch.float64)
    return float(max_over_ranks(spent, parts.world)[0])


@contextmanager
def _eager(parts: Parts) -> Iterator[Parts]:
    """The same code without the compiler."""
    with torch.compiler.set_stance("force_eager"):
        yield parts


@contextmanager
def _cached_batch(parts: Parts) -> Iterator[Parts]:
    """One batch again and again, on the device already: what a perfect loader would give."""
    batch = next(parts.batches)
    if parts.deliver is not None:
        batch = parts.deliver(batch)
    yield replace(parts, batches=itertools.repeat(batch), deliver=None)


@contextmanager
def _no_sync(parts: Parts) -> Iterator[Parts]:
    """No gradient travels: ranks drift apart, so that this comes last."""
    yield replace(parts, strategy=NoSync())


class NoSync:
    """DDP that never averages."""

    def wrap(self, model: nn.Module, *given: Any) -> nn.Module:
        return model

    def grad_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        assert isinstance(model, DistributedDataParallel)
        return model.no_sync()


@contextmanager
def _unsearched(parts: Parts) -> Iterator[Parts]:
    """A second DDP around the model, which searches for no unused parameters; the first one's hooks
    do nothing in its steps."""
    ddp = parts.model
    assert isinstance(ddp, DistributedDataParallel)
    second = DistributedDataParallel(
        ddp.module,
        device_ids=ddp.device_ids,
        bucket_cap_mb=ddp.bucket_bytes_cap / 2**20,
        gradient_as_bucket_view=ddp.gradient_as_bucket_view,
    )
    parts.state.comm_hook.register(second)
    try:
        yield replace(parts, model=second)
    finally:
        second.reducer._remove_autograd_hooks()


def _on_one_batch(parts: Parts) -> Parts:
    """Without the search, a batch that leaves a parameter unused, as none did so far, would end the
    job."""
    with _cached_batch(parts) as cached:
        return cached


def _wanted(parts: Parts, asked: list[str]) -> tuple[list[str], list[str]]:
    """The counter-runs in their order, and why others can't be. A collective."""
    ddp = parts.model if isinstance(parts.model, DistributedDataParallel) else None
    wanted = [name for name in asked if name != NO_SYNC]
    wanted += ["eager"] if parts.compile.compare_eager else []
    reasons = []
    if parts.world.alone:
        return wanted, []
    unused = gather(unused_in_some_step(parts), parts.world)
    if ddp is not None and ddp.find_unused_parameters and all(names == [] for names in unused):
        if "forward" in vars(ddp):
            reasons.append("counter-run unused_search: DDP is compiled (strategy.compile=outside)")
        else:
            wanted.append(UNUSED_SEARCH)
    if NO_SYNC in asked and ddp is not None:
        wanted.append(NO_SYNC)
    elif NO_SYNC in asked:
        reasons.append("counter-run no_sync: only strategy=ddp can leave out its reductions")
    return wanted, reasons


NO_SYNC, UNUSED_SEARCH = "no_sync", "unused_search"

CHANGES: dict[str, Change] = {
    "eager": _eager,
    "cached_batch": _cached_batch,
    NO_SYNC: _no_sync,
    UNUSED_SEARCH: _unsearched,
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
    """Steps that the job does in `seconds`, 1 to `most`, the same on all ranks."""
    typical = max(parts.ledger.steps().typical_s(), 1e-9)
    steps = min(max(math.ceil(seconds / typical), 1), most)
    return int(max_over_ranks(torch.tensor([steps]), parts.world)[0])
