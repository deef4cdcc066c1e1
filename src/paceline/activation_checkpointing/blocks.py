"""activation_checkpointing=blocks: a block keeps its inputs alone, backward computes it again.

Chen et al. 2016, "Training deep nets with sublinear memory cost".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from paceline.types import ConfigError, Context, at_least


@dataclass(frozen=True)
class Blocks:
    """`every`: 1 computes all blocks again, 2 each second one, from the first on."""

    every: int

    wraps_blocks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, every=self.every)

    def open(self, context: Context) -> Recomputed:
        return Recomputed("blocks", self.every)


class Recomputed:
    """`how`: arguments for torch's checkpoint of each block."""

    def __init__(self, option: str, every: int, **how: Any) -> None:
        self._option, self._every, self._how = option, every, how
        self._done = "0 blocks"

    def __call__(self, model: nn.Module) -> None:
        """Raises ConfigError for a model without blocks(), and where a block has a state that a
        second forward would change."""
        blocks = getattr(model, "blocks", None)
        if blocks is None or isinstance(blocks, nn.Module):
            raise ConfigError(
                [
                    f"activation_checkpointing={self._option}: {type(model).__name__} doesn't "
                    "define blocks() -> list of modules; define it, or use "
                    "activation_checkpointing=off"
                ]
            )
        found = list(blocks())
        chosen = found[:: self._every]
        for block in chosen:
            self._check(block)
            # Inside the call, in place of its forward: the hooks of wrappers (FSDP gathers by them)
            # stay outside, state-dict keys as they are. Dropout draws the same numbers again.
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, **self._how)
        of = "" if len(chosen) == len(found) else f"{len(chosen)} of "
        self._done = f"{of}{len(found)} block{'' if len(found) == 1 else 's'}"
        self._done += ", selective" if self._how and found else ""

    def report(self) -> str:
        return self._done

    def _check(self, block: nn.Module) -> None:
        for module in block.modules():
            if isinstance(module, _NormBase) and module.track_running_stats:
                raise ConfigError(
                    [
                        f"activation_checkpointing={self._option}: {type(module).__name__} in "
                        f"{type(block).__name__} would count each batch twice in its running "
                        "statistics; use a norm without them, as GroupNorm, or "
                        "activation_checkpointing=off"
                    ]
                )
