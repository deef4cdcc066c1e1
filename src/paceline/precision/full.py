"""precision=fp32 and tf32: every tensor as the model made it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paceline.precision.clip import clip_gradients
from paceline.types import Context


@dataclass(frozen=True)
class Full:
    """`float32_matmul`: how a CUDA device multiplies float32 in matrix products and convolutions:
    "ieee" in full, "tf32" with 10 bits of mantissa. It has no meaning on a CPU."""

    float32_matmul: Literal["ieee", "tf32"]

    def open(self, context: Context) -> FullPrecision:
        """Raises RuntimeError when torch doesn't keep what was set."""
        if context.world.device.type == "cuda":
            multiply_float32(self.float32_matmul)
        return FullPrecision()


class FullPrecision:
    skipped: Tensor | None = None
    compute_dtype: torch.dtype | None = None

    def __init__(self) -> None:
        self.cast_by_wrapper = False
        self._nothing: AbstractContextManager[Any] = nullcontext()

    def prepare(self, model: nn.Module) -> None:
        return None

    def forward(self) -> AbstractContextManager[Any]:
        return self._nothing

    def scale(self, loss: Tensor) -> Tensor:
        return loss

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor | None:
        norm = clip_gradients(optimizer, clip)
        optimizer.step()
        return norm

    def report(self) -> dict[str, Any]:
        return {"loss_scale": None}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None


def multiply_float32(how: Literal["ieee", "tf32"]) -> None:
    """Set how CUDA devices multiply float32, in this process, and read it back.

    torch's own default multiplies matrices in full, but lets cuDNN use TF32 in convolutions.
    """
    # Written by the older names and read by the newer ones. Written by the newer ones, the older
    # can't be read any more, and Inductor's autotuning (torch 2.13) reads them: it fails on tf32.
    torch.set_float32_matmul_precision("high" if how == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = how == "tf32"
    found = {
        "matrix products": torch.backends.cuda.matmul.fp32_precision,
        "convolutions": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
    }
    for what, kept in found.items():
        if kept.replace("none", "ieee") != how:  # none: not set at any level, so in full
            raise RuntimeError(f"float32_matmul={how}: torch keeps {kept} for {what}")
