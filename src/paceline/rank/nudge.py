"""Initial parameters off by one unit in the last place: what rounding alone does to a training."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

UNITS = {"float32": 2.0**-23, "float16": 2.0**-10, "tfloat32": 2.0**-10, "bfloat16": 2.0**-7}
"""Relative, of a number whose mantissa is 1."""


def apply_nudge(model: nn.Module, nudge: dict[str, Any]) -> None:
    """Multiply every floating parameter by 1 + unit or 1 - unit, by random signs, in place.

    `nudge`: `number`, the seed of the signs, and `dtype`, whose unit it is. The signs depend on
    the parameter's shape and place in the model alone. On the meta device nothing is drawn.
    """
    unit = UNITS[nudge["dtype"]]
    generator = torch.Generator().manual_seed(nudge["number"])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_meta or not parameter.is_floating_point():
                continue
            signs = torch.randint(2, parameter.shape, generator=generator, dtype=torch.int8)
            factor = 1.0 + unit * (2.0 * signs.to(parameter.device, torch.float64) - 1.0)
            parameter.copy_(parameter.double() * factor)
