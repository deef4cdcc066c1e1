"""precision=bf16_pure: parameters, gradients, optimizer state and products in one low precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from paceline.precision.clip import whole
from paceline.precision.full import FullPrecision
from paceline.types import Context


@dataclass(frozen=True)
class Pure:
    """Half the memory of float32 for everything; updates smaller than about 1/256 of a parameter
    are rounded away, which is why other precisions keep the parameters in float32."""

    dtype: Literal["bfloat16"]

    def open(self, context: Context) -> PurePrecision:
        return PurePrecision(getattr(torch, self.dtype))


class PurePrecision(FullPrecision):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def prepare(self, model: nn.Module) -> None:
        """Convert the model; what is floating among its inputs follows at every call.

        The hook is the whole model's, so it stays outside of what is compiled in place.
        """
        model.to(self._dtype)
        model.register_forward_pre_hook(self._convert, with_kwargs=True)

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor | None:
        norm = None if clip is None else _clip(optimizer, clip)
        optimizer.step()
        return norm

    def _convert(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return tree_map(self._follow, (args, kwargs))

    def _follow(self, value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self._dtype) if floating else value


def _clip(optimizer: torch.optim.Optimizer, clip: float) -> Tensor:
    """As clip_gradients, with squares added up and kept in float32, by as many kernels: torch's
    own gives the norm in the gradients' dtype, which has 3 digits."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    grads = [p.grad for p in parameters if p.grad is not None]
    norms = torch._foreach_norm(grads, 2.0, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    torch.nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    return whole(norm)
