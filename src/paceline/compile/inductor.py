"""compile=inductor: the model's forward through torch.compile, in place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from paceline.types import CompileReport, Context


@dataclass(frozen=True)
class Inductor:
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    fullgraph: bool
    dynamic: bool | None

    def open(self, context: Context) -> Compiled:
        return Compiled(self)


class Compiled:
    def __init__(self, settings: Inductor) -> None:
        from torch._dynamo.utils import counters

        self._settings = settings
        self._counters = counters
        self._frames = counters["frames"]

    def __call__(self, module: nn.Module) -> None:
        # Not module.compile(): on a class that lives in torch.nn (Sequential, TransformerEncoder)
        # Dynamo skips the call and the model runs eager without a word (torch 2.13).
        module.forward = torch.compile(
            module.forward,
            backend="inductor",
            mode=self._settings.mode,
            fullgraph=self._settings.fullgraph,
            dynamic=self._settings.dynamic,
        )

    def count(self) -> int:
        return self._frames["total"]

    def report(self) -> CompileReport:
        from torch._dynamo.utils import calculate_time_spent

        breaks = [
            {"reason": reason.splitlines()[0], "count": count}
            for reason, count in self._counters["graph_break"].items()
        ]
        return CompileReport(
            frames_compiled=self._frames["ok"],
            compile_s=calculate_time_spent()["total_wall_time"],
            graph_breaks=breaks,
            cache=os.environ.get("TORCHINDUCTOR_CACHE_DIR", "shared"),
        )
