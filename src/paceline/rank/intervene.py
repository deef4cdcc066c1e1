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

from paceline.rank.ledger import STEADY, Ledger
from paceline.rank.train import Parts, beyond_training, train
from paceline.rank.world import max_over_ranks
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
    wanted = [*asked, *(["eager"] if parts.compile.compare_eager else [])]
    if not wanted:
        return {}
    if parts.state.data.num_batches() is not None:
        why = f"counter-runs ({', '.join(wanted)}): the data source ends with the training"
        return {"reasons": [why]}
    parts.progress.end()
    found: dict[str, Any] = {"counter_runs": []}
    for name in wanted:
        if name == "loader_alone":
            step_s = loader_alone(parts, measure.window_s)
            found["counter_runs"].append({"name": name, "step_s": step_s})
            continue
        turns = take_turns(parts, step, measure.window_s, CHANGES[name])
        if turns is None:
            return found | {"reasons": [f"counter-run {name}: stopped before it was done"]}
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


CHANGES: dict[str, Change] = {"eager": _eager, "cached_batch": _cached_batch}


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
