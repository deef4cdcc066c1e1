"""Is the first step of a training right? Its gradient against float64, and that it changed
anything at all: checked once, between two steps, in no step's time."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

from paceline.rank import reference
from paceline.rank.failure import is_out_of_memory
from paceline.rank.gates import hash_of, local
from paceline.rank.reference import RANDOM, CannotJudge, Draws, Gradient
from paceline.rank.room import available_bytes
from paceline.rank.train import Parts
from paceline.rank.world import gather, max_over_ranks
from paceline.types import Batch, NotTraining

MEMORY_FACTOR = 2.0
"""auto, on a CPU: a rank's share of what is free must be this many times what it held at most."""

TIMES_EAGER = 3.0
"""A gradient may be off by this many times what eager in the same precision is off."""

FLOOR = 1e-6
"""And by this anyhow: honest float32 is 1e-7 off."""

NORM_FLOOR = 1e-5
"""The same for its norm, which is added up in float32. On a CPU, of many values in one tensor,
torch is further off: 7e-5 of 4 million, 3e-4 of 9; so what it is off by itself counts too."""

TRIES = 16
"""Steps without an update (fp16 overflowed, learning rate 0) before the first is given up."""


def empty(why: str | None = None) -> dict[str, Any]:
    """The record's numerics.gradient, `why` nothing is known."""
    keys = ("error", "eager_error", "allowed", "norm", "norm_error", "norm_allowed", "sketch")
    return {**dict.fromkeys(keys), "why": why}


def reasons(gradient: dict[str, Any]) -> list[str]:
    """What is wrong with the gradient of the first step, a sentence each."""
    error, norm_error, allowed = (gradient[k] for k in ("error", "norm_error", "allowed"))
    found = []
    if error is not None and not error <= allowed:
        found.append(
            f"gradient of the first step: {error:.1e} off its float64 reference, eager in this "
            f"precision is {gradient['eager_error']:.0e}, {allowed:.0e} is allowed: is the loss "
            "scaled, averaged and synchronised right?"
        )
    if norm_error is not None and not norm_error <= max(allowed, gradient["norm_allowed"]):
        found.append(
            f"gradient norm of the first step: {norm_error:.1e} off that of the float64 reference"
        )
    return found


class FirstStep:
    """Watches the first step through the batches that it takes and the optimizer that it calls.

    `first_step`: 0 in a fresh run; only there the parameters are known. `before`: the fingerprint
    of the parameters at the start, `digest` on rank 0 that of the model as it was made.
    """

    def __init__(
        self,
        parts: Parts,
        asked: bool | Literal["auto"],
        first_step: int,
        before: dict[str, int],
    ) -> None:
        self._parts, self._before = parts, before
        self._auto = asked == "auto"
        self._micro_batches: list[Batch] = []
        self._grads: Gradient | None = None
        self._rate = 0.0
        self._called = False
        self._tries, self.seconds = 0, 0.0
        self.coupled_by = reference.coupling(parts.state.model)
        self.gradient = empty(_why_not(parts, first_step))
        self._judging = self.gradient["why"] is None
        self._over = False
        self._own_step = vars(parts.state.optimizer).get("step")
        self._watch_optimizer()

    def batches(self, source: Iterator[Batch]) -> Iterator[Batch]:
        """The micro-batches of the step that is judged, kept as copies: a source may use their
        memory again. Ends once the step is judged, for `source` to go on by itself."""
        while not self._over:
            batch = next(source, self)
            if batch is self:
                return
            if self._judging:
                self._micro_batches.append(tree_map(_copy, batch))
            yield batch

    def __call__(self) -> bool:
        """After a step; True: it changed nothing yet, so come back after the next.

        Raises NotTraining where it should have changed a parameter. A collective.
        """
        start = time.perf_counter()
        again = self._look()
        self._parts.peaks.resume()
        self.seconds += time.perf_counter() - start
        return again

    def _look(self) -> bool:
        parts, self._tries = self._parts, self._tries + 1
        skipped = parts.state.precision.skipped
        stepped = self._called and not (skipped is not None and bool(skipped))
        stepped = all(gather(stepped, parts.world))
        if stepped and self._judging:
            self.gradient = self._judge()
            self._judging = False
        unchanged = not stepped or not self._changed()
        if stepped and unchanged and self._should_change():
            optimizer = type(parts.state.optimizer).__name__
            raise NotTraining(
                f"no parameter changed in the first step, with a learning rate of {self._rate:g} "
                f"and a gradient: is the optimizer ({optimizer}) built on the model's own "
                "parameters, and does its step() change them?"
            )
        self._micro_batches.clear()
        self._grads, self._called = None, False
        if unchanged and self._tries < TRIES:
            return True
        if self._judging:
            self.gradient = empty(f"none of the first {TRIES} steps changed anything")
        self._over, parts.spare = True, "the first step is over"
        self._leave_optimizer()
        return False

    def _judge(self) -> dict[str, Any]:
        """numerics.gradient. Every collective is reached by all ranks or by none."""
        world, found, why = self._parts.world, None, None
        try:
            self._check_memory()
            found = reference.sums(self._parts, self._micro_batches)
        except Draws as error:
            why = str(error)
            self.coupled_by = self.coupled_by or [RANDOM]
        except CannotJudge as error:
            why = str(error)
        except Exception as error:
            # whatever a user's model can't do in float64, its training can go on
            memory = "no memory is left for it" if is_out_of_memory(error) else None
            why = memory or f"the model can't run once more in float64 ({type(error).__name__})"
            print(f"WARNING gradient of the first step: {why}: {error}", flush=True)
        everyone = gather((why, found.weight if found else 0.0), world)
        known = next((w for w, _ in everyone if w), None)
        if found is None or known is not None:
            return empty(known)
        weight = sum(w for _, w in everyone)
        exact = reference.mean(found.exact, weight, world)
        eager = reference.mean(found.eager, weight, world)
        return self._compare(exact, eager)

    def _check_memory(self) -> None:
        """auto, on a CPU: a process that takes too much there is ended, not told so."""
        if not self._auto or self._parts.world.device.type != "cpu":
            return
        needed_gib = MEMORY_FACTOR * self._parts.peaks.most()[0]
        if available_bytes(self._parts.world) < needed_gib * 2**30:
            raise CannotJudge(f"it may take {needed_gib:.1f} GiB, which aren't free")

    def _compare(self, exact: Gradient, eager: Gradient) -> dict[str, Any]:
        parts, mine, theirs, size, size_32 = self._parts, 0.0, 0.0, 0.0, 0.0
        clip, norm = parts.run.clip_grad_norm, parts.curves.norms.newest()
        # as torch clips; undone, whatever the norm was
        factor = 1.0 if clip is None or norm is None else min(1.0, clip / (float(norm) + 1e-6))
        assert self._grads is not None
        named = parts.state.model.named_parameters()
        if {n for n, p in named if p.requires_grad} != exact.keys():
            return empty("the strategy gives the parameters other names")
        for name, right in exact.items():
            grad = self._grads.get(name)
            whole = torch.zeros_like(right) if grad is None else _whole(grad).to(right.device)
            mine += float((whole.double() / factor - right).square().sum())
            theirs += float((eager[name] - right).square().sum())
            size += float(right.square().sum())
            size_32 += float(torch.linalg.vector_norm(right.float())) ** 2
        if size == 0:
            return empty("the gradient is zero")
        errors = torch.tensor([mine, theirs], dtype=torch.float64)
        mine, theirs = (max_over_ranks(errors, parts.world) / size).sqrt().tolist()
        return {
            "error": mine,
            "eager_error": theirs,
            "allowed": max(TIMES_EAGER * theirs, FLOOR) + parts.state.comm_hook.lossy_rtol,
            "norm": size**0.5,
            "norm_error": None if norm is None else abs(float(norm) / size**0.5 - 1),
            "norm_allowed": max(TIMES_EAGER * abs((size_32 / size) ** 0.5 - 1), NORM_FLOOR),
            "sketch": reference.sketch(exact) if parts.world.rank == 0 else None,
            "why": None,
        }

    def _changed(self) -> bool:
        """Did any parameter? Looks no further than the first that did."""
        named = self._parts.state.model.named_parameters()
        mine = any(hash_of(p) != self._before[name] for name, p in named)
        return any(gather(mine, self._parts.world))

    def _should_change(self) -> bool:
        """The learning rate isn't 0, there is a gradient, and no update is rounded away."""
        parameters = [p for p in self._parts.state.model.parameters() if p.requires_grad]
        fine = all(p.element_size() >= 4 for p in parameters)
        pulled = any(p.grad is not None and bool(local(p.grad).any()) for p in parameters)
        return self._rate > 0 and fine and any(gather(pulled, self._parts.world))

    def _watch_optimizer(self) -> None:
        """What it is called with: its own hooks aren't reached where the step is compiled, and a
        step may use gradients up (SGD with nesterov and foreach)."""
        optimizer, inner = self._parts.state.optimizer, self._parts.state.optimizer.step

        @functools.wraps(inner)
        def step(*args: Any, **options: Any) -> Any:
            self._called = True
            self._rate = max((float(g["lr"]) for g in optimizer.param_groups), default=0.0)
            if self._judging:
                self._parts.peaks.pause()
                named = self._parts.state.model.named_parameters()
                self._grads = {n: p.grad.detach().clone() for n, p in named if p.grad is not None}
            return inner(*args, **options)

        optimizer.step = step  # type: ignore[method-assign]

    def _leave_optimizer(self) -> None:
        optimizer: Any = self._parts.state.optimizer
        if self._own_step is None:
            del optimizer.step
        else:
            optimizer.step = self._own_step


def _why_not(parts: Parts, first_step: int) -> str | None:
    """Why the gradient isn't judged, None where it is; the same on all ranks: a collective."""
    if first_step:
        return f"resumed at step {first_step}: the parameters of the first step are gone"
    mine = parts.spare if isinstance(parts.spare, str) else None
    return next((why for why in gather(mine, parts.world) if why), None)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _whole(grad: Tensor) -> Tensor:
    """Of a sharded gradient: a collective."""
    return grad.full_tensor() if isinstance(grad, DTensor) else grad
