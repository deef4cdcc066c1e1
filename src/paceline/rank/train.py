"""The training loop: one function, read downwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ConstantLR

from paceline.rank.curves import Curves
from paceline.rank.ledger import (
    BACKWARD,
    CHECKPOINT,
    DATA_WAIT,
    FORWARD,
    OPTIMIZER,
    OTHER,
    PROFILER,
    STEADY,
    TO_DEVICE,
    Ledger,
)
from paceline.rank.peaks import Peaks
from paceline.rank.progress import Progress
from paceline.rank.tags import Tagger
from paceline.rank.timings import Timings
from paceline.rank.world import StopFlag, gather, max_over_ranks, sum_over_ranks
from paceline.types import (
    ActivationCheckpointing,
    Batch,
    Checkpoint,
    Compile,
    DataError,
    Loss,
    Profiler,
    Run,
    Strategy,
    TrainState,
    World,
)

END = object()


@dataclass
class Parts:
    """What a job is made of, built in `rank/build.py` in the only order that is right."""

    world: World
    run: Run
    state: TrainState
    model: nn.Module  # as wrapped; state.model is the bare one
    loss: Loss
    strategy: Strategy
    compile: Compile
    checkpointing: ActivationCheckpointing
    checkpoint: Checkpoint
    profiler: Profiler
    ledger: Ledger
    curves: Curves
    stop: StopFlag
    progress: Progress
    warmup_steps: int
    refill_steps: int  # after a pause the loader's queue is full: these steps wait too little
    deliver: Callable[[Batch], Batch] | None  # to the device; None: a batch is there already
    peaks: Peaks
    timings: Timings
    spare: nn.Module | str  # the model as it was made, or why there is none
    make_loss: Callable[[], Loss]
    memory: dict[str, Any] | None  # what was estimated, on rank 0
    after_first_step: list[Callable[[], bool]] = field(default_factory=list)
    batches: Iterator[Batch] = field(default_factory=lambda: iter(()))
    units_used: int = 0
    micro_batches_used: int = 0


def train(parts: Parts, first_step: int, last_step: int, extra: bool = False) -> int:
    """Train steps [first_step, last_step); returns the number of steps done by then.

    Fewer than `last_step` when all ranks agreed to stop; the state is saved then, if checkpoints
    are on. `extra`: steps beyond the training, for the measurement alone: neither saved nor kept
    in the curves. Nothing here waits for the device.
    """
    run, world, state, ledger = parts.run, parts.world, parts.state, parts.ledger
    model, loss, strategy, precision = parts.model, parts.loss, parts.strategy, state.precision
    optimizer, scheduler, data = state.optimizer, state.scheduler, state.data
    batches, deliver = parts.batches, parts.deliver
    mark, accumulation = ledger.mark, run.accumulation_steps
    fixed_weight = getattr(loss, "fixed_weight", False)
    seed: Tensor | None = None  # d(mean loss of the step) / d(summed loss of a micro-batch)
    unsettled = parts.refill_steps if extra else parts.warmup_steps
    tagger = Tagger(unsettled, parts.refill_steps)

    ledger.begin()
    for step in range(first_step, last_step):
        if not extra:
            parts.profiler.begin(step)
        optimizer.zero_grad()
        mark(OPTIMIZER)
        step_units, step_loss, step_weight = 0, None, None

        for micro in range(accumulation):
            batch = next(batches, END)
            if batch is END:
                raise _ended(parts, step)
            mark(DATA_WAIT)
            if deliver is not None:
                batch = deliver(batch)
                mark(TO_DEVICE)
            units = data.count(batch)
            with strategy.grad_sync(model, micro == accumulation - 1):
                with precision.forward():
                    total, weight = loss(model, batch)
                if seed is None or not fixed_weight:
                    seed = _seed(weight if fixed_weight else units, accumulation, total)
                mark(FORWARD)
                precision.scale(total).backward(seed)
                mark(BACKWARD)
            parts.micro_batches_used += 1
            step_units += units
            total = total.detach()
            step_loss = total if step_loss is None else step_loss + total
            step_weight = weight if step_weight is None else step_weight + weight

        assert step_loss is not None and step_weight is not None
        if not fixed_weight:
            _reweigh(optimizer, step_units, step_weight, world)
        norm = precision.step(optimizer, run.clip_grad_norm)
        scheduler.step()
        mark(OPTIMIZER)

        parts.units_used += step_units
        state.step = step + 1
        if not extra:
            broken = state.comm_hook.take_nonfinite()
            parts.curves.add(step_loss, step_weight, norm, precision.skipped, broken)
        else:
            state.comm_hook.take_nonfinite()
            parts.curves.add_extra(precision.skipped)
        settled = step - first_step >= parts.warmup_steps
        stopping = parts.stop.agreed(step + 1, settled)
        mark(OTHER)
        saved = not extra and parts.checkpoint.save(
            state, step + 1, now=stopping or step + 1 == last_step
        )
        mark(CHECKPOINT)
        disturbed = not extra and parts.profiler.tick()
        if disturbed:
            mark(PROFILER)

        if parts.progress.due():
            units_all = parts.units_used * world.world_size
            mean = step_loss / step_weight
            waited = ledger.recent_share(DATA_WAIT)
            if not parts.progress.report(step + 1, units_all, mean, waited) and not extra:
                parts.stop.give_up()
        mark(OTHER)
        tag = tagger.tag(parts.compile.tick(step), saved, disturbed)
        ledger.end_step(step, tag)
        parts.timings.tick(tag != STEADY)
        if parts.after_first_step and not extra:
            # each comes back after the next step if it says so; none of their time is a step's
            parts.after_first_step[:] = [look for look in parts.after_first_step if look()]
            tagger.unsettled = max(tagger.unsettled, parts.refill_steps)
            ledger.begin()
        if stopping:
            return step + 1
    return last_step


def beyond_training(parts: Parts) -> Parts:
    """The same job for extra steps: the learning rate stays where training ended."""
    held = ConstantLR(parts.state.optimizer, factor=1.0, total_iters=0)
    return replace(parts, state=replace(parts.state, scheduler=held))


def held_out(parts: Parts, batches: int) -> Iterator[Batch]:
    """This rank's share of `batches` held-out batches, where the model can use them."""
    found = parts.state.data.held_out(batches)
    return found if parts.deliver is None else map(parts.deliver, found)


def evaluate(parts: Parts, batches: int) -> float | None:
    """Mean held-out loss over all ranks; None when there is nothing to evaluate.

    On the bare model and always eager: a second mode would compile a second time, and it is the
    parameters that are evaluated.
    """
    model, precision = parts.state.model, parts.state.precision
    total = torch.zeros(2, dtype=torch.float64)
    shared = getattr(parts.strategy, "collective_forward", False) and not parts.world.alone
    model.eval()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        for batch, counts in _in_step(parts, batches) if shared else _all(parts, batches):
            with precision.forward():
                summed, weight = parts.loss(model, batch)
            if counts:
                total += torch.tensor([float(summed), float(weight)], dtype=torch.float64)
    settle(parts)
    model.train()
    summed_all, weight_all = sum_over_ranks(total, parts.world).tolist()
    return summed_all / weight_all if weight_all else None


def settle(parts: Parts) -> None:
    """After forwards without a backward: what they gathered is given back."""
    give_back = getattr(parts.strategy, "settle", None)
    if give_back is not None:
        give_back(parts.model)


def _all(parts: Parts, batches: int) -> Iterator[tuple[Batch, bool]]:
    return ((batch, True) for batch in held_out(parts, batches))


def _in_step(parts: Parts, batches: int) -> Iterator[tuple[Batch, bool]]:
    """(batch, does it count): the same number on every rank, for each forward is a collective. A
    rank that has no more gives its last once more; nothing where a rank has none at all."""
    mine = held_out(parts, batches)
    last = batch = next(mine, END)
    if any(gather(batch is END, parts.world)):
        print("WARNING no held-out loss: there are fewer held-out samples than ranks", flush=True)
        return
    while max_over_ranks(torch.tensor([batch is not END]).int(), parts.world)[0]:
        last = last if batch is END else batch
        yield last, batch is not END
        batch = next(mine, END)


def _ended(parts: Parts, step: int) -> DataError:
    run, used = parts.run, parts.micro_batches_used
    return DataError(
        f"rank {parts.world.rank}: the data source ended in step {step}, after {used} "
        f"micro-batches; run.steps={run.steps} with run.accumulation_steps="
        f"{run.accumulation_steps} needs {run.steps * run.accumulation_steps}"
    )


def _seed(weight: Tensor | int, accumulation: int, like: Tensor) -> Tensor:
    """What backward starts with, so that the gradient is that of the mean over the step: each
    micro-batch has the same weight here, and the strategy averages over ranks. No sync."""
    if isinstance(weight, Tensor):
        return (1.0 / (weight * accumulation)).to(like.dtype)
    return torch.full((), 1.0 / (weight * accumulation), dtype=like.dtype, device=like.device)


def _reweigh(optimizer: torch.optim.Optimizer, units: int, weight: Tensor, world: World) -> None:
    """Micro-batches weigh differently (masked tokens): gradients were taken per unit; make them
    per weight, over all ranks. units / weight of the whole step, as a tensor: no sync."""
    whole = torch.stack([weight, torch.full_like(weight, float(units))])
    if not world.alone:
        torch.distributed.all_reduce(whole)
    grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    torch._foreach_mul_(grads, whole[1] / whole[0])
