"""Build a job's parts in the only order that is right: each line needs those above it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline import config
from paceline.rank.account import slowest_so_far
from paceline.rank.curves import Curves
from paceline.rank.deliver import deliverer
from paceline.rank.gates import fingerprint, init_digest
from paceline.rank.ledger import Ledger
from paceline.rank.memory import estimate
from paceline.rank.nudge import apply_nudge
from paceline.rank.peaks import Peaks
from paceline.rank.process import seed_everything
from paceline.rank.progress import Progress
from paceline.rank.reference import spare
from paceline.rank.timings import Timings
from paceline.rank.train import Parts
from paceline.rank.world import StopFlag, gather
from paceline.types import (
    Context,
    Data,
    DataError,
    Measure,
    NotTraining,
    Run,
    TrainState,
    World,
)


def build(
    job: dict[str, Any],
    directory: Path,
    world: World,
    stop: StopFlag,
    nudge: dict[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
) -> tuple[Parts, str]:
    """The parts, and on rank 0 the digest of the initial parameters as the model was made.

    `nudge`: of a nudged baseline, as in rank/nudge.py. `identity`: as in Context.
    """
    run: Run = config.settings(job["run"], Run)
    measure: Measure = config.settings(job["measure"])
    context = Context(world, run, directory, config.build, identity or {})

    def make(group: str, **given: Any) -> Any:
        return config.build(job[group], context, **given)

    # The same seed on every rank and for every strategy, so that all start from the same
    # parameters; what ranks draw later (dropout) is seeded apart.
    seed_everything(run.seed)
    data = make("data")
    _agree_on_length(data, run, world)

    seed_everything(run.seed)
    strategy = make("strategy")
    with getattr(strategy, "building", lambda world: nullcontext())(world):
        model = make("model")
    if nudge is not None:
        apply_nudge(model, nudge)
    model.train()
    spare_model = spare(model, measure.gradient_check)
    precision = make("precision")
    precision.prepare(model)  # may convert the parameters: before they are known and wrapped
    digest = "" if world.rank else init_digest(fingerprint(model))
    loss = make("loss")
    checkpointing = make("activation_checkpointing")
    checkpointing(model)
    # before the device holds anything of the job
    memory = None if world.rank else estimate(job, context, data, model, precision)
    compiler = make("compile")
    comm_hook = make("comm_hook")
    wrapped = strategy.wrap(model, world, compiler, precision, comm_hook)
    # after the wrapper: a strategy may replace the parameters
    optimizer = make("optimizer", params=[p for p in wrapped.parameters() if p.requires_grad])
    _check_optimizer(optimizer, wrapped)
    compiler.optimizer(optimizer)
    scheduler = make("scheduler", optimizer=optimizer)
    state = TrainState(model, optimizer, scheduler, precision, data, comm_hook)
    curves = Curves(state.history, comm_hook.overflow)
    state.fold = partial(curves.fold, world)
    seed_everything(run.seed + 1_000_003 * (world.rank + 1))
    ledger = Ledger(world.device, run.accumulation_steps)
    timings = Timings(wrapped, comm_hook, world)
    slowest = partial(slowest_so_far, ledger, timings, world)
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
        profiler=make("profiler", model=model, wrapped=wrapped, slowest=slowest),
        ledger=ledger,
        curves=curves,
        stop=stop,
        progress=Progress(directory, world, run.steps),
        peaks=Peaks(world.device),
        timings=timings,
        spare=spare_model,
        make_loss=partial(make, "loss"),
        memory=memory,
        warmup_steps=measure.warmup_steps,
        deliver=deliverer(data, world),
        refill_steps=math.ceil(getattr(data, "queued_batches", 0) / run.accumulation_steps),
    )
    return parts, digest


def _check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """One that holds other parameters than the wrapped model's trains nothing, without an error."""
    theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, p in trainable.items() if id(p) not in theirs]
    if missing:
        listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if missing[3:] else "")
        raise NotTraining(
            f"optimizer {type(optimizer).__name__}: {len(missing)} of {len(trainable)} trainable "
            f"parameters of the wrapped model are not among its own ({listed}): build it on the "
            "`params` that it is given, or freeze what it must not train (requires_grad=False)"
        )


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
