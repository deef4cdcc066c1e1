"""strategy=single: one process, no wrapper."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

from paceline.types import CommHook, Compile, Context, Precision, World


@dataclass(frozen=True)
class Single:
    def open(self, context: Context) -> OneProcess:
        return OneProcess()


class OneProcess:
    def __init__(self) -> None:
        self._nothing: AbstractContextManager[Any] = nullcontext()

    def wrap(
        self,
        model: nn.Module,
        world: World,
        compile: Compile,
        precision: Precision,
        comm_hook: CommHook,
    ) -> nn.Module:
        model.to(world.device)
        compile(model)
        return model

    def grad_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        return self._nothing
