"""comm_hook=none: the strategy's own gradient reduction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from paceline.types import Context


@dataclass(frozen=True)
class NoHook:
    def open(self, context: Context) -> Plain:
        return Plain()


class Plain:
    def register(self, model: nn.Module) -> None:
        return None
