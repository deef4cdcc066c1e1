"""activation_checkpointing=selective: a block keeps what is costly to compute again, not the rest.

Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models"; which
operators, as in torchtitan: matrix products and attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from paceline.activation_checkpointing.blocks import Recomputed
from paceline.types import Context


@dataclass(frozen=True)
class Selective:
    """`keep`: the operators whose results are kept, as `aten.mm` for all of `torch.ops.aten.mm`."""

    keep: list[str]

    wraps_blocks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.keep:
            raise ValueError(
                "keep=[]: nothing is kept; name operators, as [aten.mm], or use "
                "activation_checkpointing=blocks"
            )
        for name in self.keep:
            _operator(name)

    def open(self, context: Context) -> Recomputed:
        kept = {_operator(name) for name in self.keep}

        def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            known = getattr(operator, "overloadpacket", operator) in kept
            return CheckpointPolicy.MUST_SAVE if known else CheckpointPolicy.PREFER_RECOMPUTE

        contexts = partial(create_selective_checkpoint_contexts, policy)
        return Recomputed("selective", 1, context_fn=contexts)


def _operator(name: str) -> Any:
    """The operator, all its overloads; ValueError when torch has none of this name."""
    namespace, _, operator = name.partition(".")
    try:
        return getattr(getattr(torch.ops, namespace), operator)
    except AttributeError:
        raise ValueError(
            f"keep={name}: torch.ops has no such operator; give names as aten.mm, aten.bmm"
        ) from None
