"""diagnose=off: no verdict on what bounds a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Off:
    def open(self, context: Any) -> Off:
        return self

    def explain(
        self, record: dict[str, Any], config: dict[str, Any], choices: dict[str, str]
    ) -> dict[str, Any]:
        return {}
