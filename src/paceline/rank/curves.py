"""Loss and gradient norm of every step: kept on the device, added up over ranks late."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from paceline.rank.world import sum_over_ranks
from paceline.types import Nonfinite, World

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
    losses: Series = field(default_factory=Series)
    weights: Series = field(default_factory=Series)
    norms: Series = field(default_factory=Series)

    def add(self, loss: Tensor, weight: Tensor, norm: Tensor | None) -> None:
        self.losses.add(loss)
        self.weights.add(weight)
        if norm is not None:
            self.norms.add(norm)

    def fold(self, world: World) -> None:
        """Bring `history` (mean loss over all ranks, global gradient norm) up to date: a
        collective, called by all ranks. Raises Nonfinite naming the first bad step."""
        sums = sum_over_ranks(torch.stack([self.losses.take(), self.weights.take()]), world)
        for name, what, values in (
            ("loss", "loss", sums[0] / sums[1]),
            ("grad_norm", "gradient norm", self.norms.take()),
        ):
            known = self.history.setdefault(name, [])
            _check_finite(what, values.tolist(), len(known))
            known += values.tolist()


def _check_finite(what: str, values: list[float], first_step: int) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        step = first_step + int(bad[0])
        raise Nonfinite(
            f"the {what} is {values[bad[0]]} at step {step}; lower optimizer.lr, clip with "
            "run.clip_grad_norm, or try precision=fp32",
            step,
        )
