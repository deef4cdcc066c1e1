"""diagnose=off: no verdict on what bounds a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Off:
    def open(self, context: Any) -> Off:
        return self

    def explain(self, record: dict[str, Any]) -> dict[str, Any]:
        return {}
