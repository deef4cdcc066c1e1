"""Loss, gradient norm and skip of every step: kept on the device, added up over ranks late."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.rank.world import sum_over_ranks
from paceline.types import Nonfinite, World

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STACK_EVERY = 512
"""Scalars kept as single tensors before they are stacked: bounds their number, copies nothing."""


class Series:
    """A scalar tensor a step, kept on its device without a copy or a sync."""

    def __init__(self) -> None:
        self._stacked: list[Tensor] = []
        self._open: list[Tensor] = []

    def add(self, value: Tensor) -> None:
        self._open.append(value)
        if len(self._open) == STACK_EVERY:
            self._stack()

    def newest(self) -> Tensor | None:
        """[] the value added last, None where it is taken or there is none."""
        return self._open[-1] if self._open else None

    def take(self) -> Tensor:
        """[steps] f64 on the CPU, everything since the last call; waits for the device."""
        self._stack()
        whole = torch.cat(self._stacked) if self._stacked else torch.empty(0)
        self._stacked.clear()
        return whole.double().cpu()

    def _stack(self) -> None:
        if self._open:
            self._stacked.append(torch.stack(self._open).float())
            self._open.clear()


@dataclass
class Curves:
    """This rank's summed losses and weights a step, and what all ranks had up to the last fold."""

    history: dict[str, list[float]]
    overflow: str | None = None  # of a gradient that the communication hook broke
    losses: Series = field(default_factory=Series)
    weights: Series = field(default_factory=Series)
    norms: Series = field(default_factory=Series)
    skips: Series = field(default_factory=Series)
    extra_skips: Series = field(default_factory=Series)  # of the steps beyond the training
    broken: Series = field(default_factory=Series)

    def add(
        self,
        loss: Tensor,
        weight: Tensor,
        norm: Tensor | None,
        skipped: Tensor | None,
        broken: Tensor | None = None,
    ) -> None:
        """A step of training. `skipped`: as Precision says; `broken`: as CommHook's
        take_nonfinite."""
        if broken is not None:
            self.broken.add(broken)
        self.losses.add(loss)
        self.weights.add(weight)
        if norm is not None:
            self.norms.add(norm)
        if skipped is not None:
            self.skips.add(skipped)

    def add_extra(self, skipped: Tensor | None) -> None:
        """A step beyond the training."""
        if skipped is not None:
            self.extra_skips.add(skipped)

    def fold(self, world: World) -> None:
        """Bring `history` (mean loss over all ranks, global gradient norm, skipped or not as 1.0
        or 0.0, the same on all ranks as gradients are) up to date: a collective, called by all
        ranks. Raises Nonfinite naming the first bad step; the norm of a skipped step may be
        infinite, for that is why it was skipped."""
        sums = sum_over_ranks(torch.stack([self.losses.take(), self.weights.take()]), world)
        norms, skips = self.norms.take().numpy(), self.skips.take().numpy()
        excused = skips > 0 if len(skips) else np.zeros(len(norms), bool)
        self._check_hook(world, excused)
        self._append("loss", "loss", (sums[0] / sums[1]).numpy(), np.zeros(sums.shape[1], bool))
        self._append("grad_norm", "gradient norm", norms, excused[: len(norms)])
        self.history.setdefault("skipped", []).extend(skips.tolist())

    def _check_hook(self, world: World, excused: Bools) -> None:
        """Before losses and norms, which follow from it a step later. A skipped step is a loss
        scale that was too large, and has become smaller."""
        if self.overflow is None:
            return
        mine = self.broken.take()
        broken = sum_over_ranks(mine, world).numpy() > 0
        bad = np.flatnonzero(broken & ~excused if len(excused) else broken)
        if len(bad):
            step = len(self.history.get("loss", [])) + int(bad[0])
            raise Nonfinite(f"{self.overflow}; first at step {step}", step)

    def _append(self, name: str, what: str, values: Floats, excused: Bools) -> None:
        known = self.history.setdefault(name, [])
        _check_finite(what, values, excused, len(known))
        known += values.tolist()


def _check_finite(what: str, values: Floats, excused: Bools, first_step: int) -> None:
    bad = np.flatnonzero(~np.isfinite(values) & ~excused)
    if len(bad):
        step = first_step + int(bad[0])
        raise Nonfinite(
            f"the {what} is {values[bad[0]]} at step {step}; lower optimizer.lr, clip with "
            "run.clip_grad_norm, or try precision=fp32",
            step,
        )
