"""precision=fp16: matrix products in float16 by autocast, with a loss scale against underflow."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from paceline.precision.autocast import AutocastPrecision
from paceline.precision.clip import clip_gradients
from paceline.types import Context, at_least


@dataclass(frozen=True)
class Scaled:
    """The loss is multiplied by a scale, gradients are divided by it. A step whose gradients
    overflow is skipped and multiplies the scale by `backoff_factor`; `growth_interval` good steps
    in a row multiply it by `growth_factor` (Micikevicius et al. 2018, section 3.2)."""

    dtype: Literal["float16"]
    init_scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int

    def __post_init__(self) -> None:
        at_least(1, growth_interval=self.growth_interval)
        if not 0 < self.init_scale < math.inf:
            raise ValueError(f"init_scale={self.init_scale}: give a finite scale above 0")
        if not 1 < self.growth_factor < math.inf:
            raise ValueError(f"growth_factor={self.growth_factor}: give a finite factor above 1")
        if not 0 < self.backoff_factor < 1:
            raise ValueError(f"backoff_factor={self.backoff_factor}: give a factor between 0 and 1")

    def open(self, context: Context) -> ScaledPrecision:
        # The schedule goes on in a skipped step: step k has the same rate in every precision.
        # torch takes a scheduler that moves before the first real step for a mistake.
        warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)` before")
        return ScaledPrecision(context.world.device.type, self)


class ScaledPrecision(AutocastPrecision):
    """`skipped` [] bool on the device: the last step's gradients overflowed, nothing was changed.

    We wait for nothing, but torch does: unless the optimizer is fused, `GradScaler.step` reads the
    overflow flag once a step to know whether to call it, which waits for the device.
    """

    def __init__(self, device_type: str, settings: Scaled) -> None:
        super().__init__(device_type, getattr(torch, settings.dtype))
        self._scaler = torch.amp.GradScaler(
            device_type,
            init_scale=settings.init_scale,
            growth_factor=settings.growth_factor,
            backoff_factor=settings.backoff_factor,
            growth_interval=settings.growth_interval,
        )

    def scale(self, loss: Tensor) -> Tensor:
        return self._scaler.scale(loss)

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor | None:
        # also without clipping: only so is the overflow known outside of a fused optimizer
        self._scaler.unscale_(optimizer)
        self.skipped = self._overflow(optimizer)
        norm = clip_gradients(optimizer, clip)
        self._scaler.step(optimizer)
        self._scaler.update()
        return norm

    def report(self) -> dict[str, Any]:
        """Waits for the device."""
        return {"loss_scale": self._scaler.get_scale()}

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state)

    def _overflow(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """[] bool from the scaler's own flags, one f32 a device, new ones at every unscale_."""
        flags = list(self._scaler._found_inf_per_device(optimizer).values())
        if any(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"]):
            for flag in flags:  # a rank has looked at its own shards only
                dist.all_reduce(flag, dist.ReduceOp.MAX)
        found: Tensor = flags[0] if len(flags) == 1 else torch.stack(flags).sum()
        return found > 0
