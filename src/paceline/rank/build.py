"""Build a job's parts in the only order that is right: each line needs those above it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from paceline import config
from paceline.rank.curves import Curves
from paceline.rank.deliver import deliverer
from paceline.rank.gates import fingerprint
from paceline.rank.ledger import Ledger
from paceline.rank.process import seed_everything
from paceline.rank.progress import Progress
from paceline.rank.train import Parts
from paceline.rank.world import StopFlag, gather
from paceline.types import Context, Data, DataError, Measure, Run, TrainState, World


def build(
    job: dict[str, Any], directory: Path, world: World, stop: StopFlag
) -> tuple[Parts, dict[str, int]]:
    """The parts, and the fingerprint of the initial parameters."""
    run: Run = config.settings(job["run"], Run)
    measure: Measure = config.settings(job["measure"])
    context = Context(world, run, directory, config.build)

    def make(group: str, **given: Any) -> Any:
        return config.build(job[group], context, **given)

    # The same seed on every rank and for every strategy, so that all start from the same
    # parameters; what ranks draw later (dropout) is seeded apart.
    seed_everything(run.seed)
    data = make("data")
    _agree_on_length(data, run, world)
    seed_everything(run.seed)
    model = make("model")
    model.train()
    precision = make("precision")
    precision.prepare(model)  # may convert the parameters: before they are known and wrapped
    before = fingerprint(model)
    loss = make("loss")
    checkpointing = make("activation_checkpointing")
    checkpointing(model)
    compiler = make("compile")
    comm_hook = make("comm_hook")
    strategy = make("strategy")
    wrapped = strategy.wrap(model, world, compiler, precision, comm_hook)
    # after the wrapper: a strategy may replace the parameters
    optimizer = make("optimizer", params=[p for p in wrapped.parameters() if p.requires_grad])
    compiler.optimizer(optimizer)
    scheduler = make("scheduler", optimizer=optimizer)
    state = TrainState(model, optimizer, scheduler, precision, data, comm_hook)
    curves = Curves(state.history)
    state.fold = partial(curves.fold, world)
    seed_everything(run.seed + 1_000_003 * (world.rank + 1))
    parts = Parts(
        world=world,
        run=run,
        state=state,
        model=wrapped,
        loss=loss,
        strategy=strategy,
        compile=compiler,
        checkpointing=checkpointing,
        checkpoint=make("checkpoint"),
        profiler=make("profiler"),
        ledger=Ledger(world.device, run.accumulation_steps),
        curves=curves,
        stop=stop,
        progress=Progress(directory, world, run.steps),
        warmup_steps=measure.warmup_steps,
        deliver=deliverer(data, world),
        refill_steps=math.ceil(getattr(data, "queued_batches", 0) / run.accumulation_steps),
    )
    return parts, before


def _agree_on_length(data: Data, run: Run, world: World) -> None:
    """Ranks with unequal numbers of batches would hang in the last all-reduce: say so before."""
    counts = gather(data.num_batches(), world)
    finite = [c for c in counts if c is not None]
    if not finite:
        return
    if len(set(counts)) > 1:
        listed = ", ".join(f"rank {r}: {c}" for r, c in enumerate(counts))
        raise DataError(
            f"the ranks have unequal numbers of micro-batches ({listed}); "
            "drop or pad in the data source so that all have the same"
        )
    needed = run.steps * run.accumulation_steps
    if finite[0] < needed:
        raise DataError(
            f"the data source has {finite[0]} micro-batches a rank, run.steps={run.steps} with "
            f"run.accumulation_steps={run.accumulation_steps} needs {needed}"
        )
