"""profiler=off: nothing is traced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from paceline.types import Context


@dataclass(frozen=True)
class Off:
    def open(
        self, context: Context, model: nn.Module, wrapped: nn.Module, slowest: Callable[[], int]
    ) -> Untraced:
        return Untraced()


class Untraced:
    def __enter__(self) -> Untraced:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def begin(self, step: int) -> None:
        return None

    def tick(self) -> bool:
        return False

    def report(self) -> dict[str, Any]:
        return {}
