"""compile=off: the model runs eager."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from paceline.types import CompileReport, Context


@dataclass(frozen=True)
class Off:
    def open(self, context: Context) -> Eager:
        return Eager()


class Eager:
    def __call__(self, module: nn.Module) -> None:
        return None

    def count(self) -> int:
        return 0

    def report(self) -> CompileReport:
        return CompileReport(frames_compiled=0, compile_s=None, graph_breaks=[], cache=None)
