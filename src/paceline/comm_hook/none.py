"""comm_hook=none: the strategy's own gradient reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from paceline.types import Context


@dataclass(frozen=True)
class NoHook:
    def open(self, context: Context) -> Plain:
        return Plain()


class Plain:
    lossy_rtol = 0.0
    overflow: str | None = None
    reductions = 1
    waited_s = 0.0

    def register(self, model: nn.Module) -> None:
        return None

    def take_nonfinite(self) -> Tensor | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return None
