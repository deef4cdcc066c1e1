"""profiler=off: nothing is traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.types import Context


@dataclass(frozen=True)
class Off:
    def open(self, context: Context) -> Untraced:
        return Untraced()


class Untraced:
    def __enter__(self) -> Untraced:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def tick(self) -> bool:
        return False

    def report(self) -> dict[str, Any]:
        return {}
