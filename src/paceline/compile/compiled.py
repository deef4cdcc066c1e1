"""torch.compile in place: of the whole model, of its blocks, and of the optimizer's step."""

from __future__ import annotations

import importlib
import inspect
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn

from paceline.compile.explain import explain
from paceline.compile.watch import Watch
from paceline.types import CompileReport, Context, at_least

OWN_CACHES = ("cold", "warm")


@dataclass(frozen=True)
class Compiled:
    """`backend`: registered with torch, or the import path of your own. `scope=blocks`: the modules
    of the model's `blocks()` one by one, so that equal ones are compiled once. `cache`: cold (a
    fresh directory), warm (torch's shared one) or a directory. `compare_eager`: measure eager steps
    beside compiled ones after the window, for the break-even step."""

    backend: str
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    scope: Literal["model", "blocks"]
    optimizer_step: bool
    fullgraph: bool
    dynamic: bool | None
    recompile_limit: int
    cache: str
    compare_eager: bool

    def __post_init__(self) -> None:
        at_least(1, recompile_limit=self.recompile_limit)
        if self.mode is not None and self.backend != "inductor":
            raise ValueError(
                f"mode={self.mode}: only backend=inductor has modes; set mode=null, or "
                "backend=inductor"
            )
        if not self.cache or (self.cache not in OWN_CACHES and os.sep not in self.cache):
            raise ValueError(
                f"cache={self.cache!r}: give cold, warm, or a directory, as in ./compile_cache"
            )

    def open(self, context: Context) -> Compiler:
        return Compiler(self, context)


class Compiler:
    """One job's compiler. Holds the fresh cache directory of `cache=cold` until `close`."""

    def __init__(self, settings: Compiled, context: Context) -> None:
        self._settings = settings
        self._fresh: Path | None = None
        if settings.cache == "cold":
            # a directory a rank: else the second one is warmed by the first
            self._fresh = context.directory / "compile_cache" / f"rank{context.world.rank}"
            shutil.rmtree(self._fresh, ignore_errors=True)
            _use_cache(self._fresh)
        elif settings.cache != "warm":
            _use_cache(Path(settings.cache))
        torch._dynamo.config.recompile_limit = settings.recompile_limit
        self.compare_eager = settings.compare_eager
        self._backend = _backend(settings.backend)
        self._watch = Watch()

    def __call__(self, module: nn.Module, inner: Sequence[nn.Module] = ()) -> None:
        if inner:
            for part in inner:
                self._compile(part)
            return
        if self._settings.scope == "model":
            self._compile(module)
            return
        blocks = getattr(module, "blocks", None)
        if blocks is None:
            raise TypeError(
                f"compile.scope=blocks: {type(module).__name__} doesn't define blocks() -> list of "
                "modules; define it, or use compile.scope=model"
            )
        for block in blocks():
            self._compile(block)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Compile the step; a learning rate as a number would recompile it whenever it changes."""
        if not self._settings.optimizer_step:
            return
        for group in optimizer.param_groups:
            group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float64)
        # torch's wrappers around a step hold deliberate graph breaks; without gradients, which is
        # what they see to, the bare step is one graph
        bare: Any = inspect.unwrap(type(optimizer).step)
        step = torch.no_grad()(self._compiled(bare))
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def tick(self, step: int) -> bool:
        return self._watch.tick(step)

    def explain(self, error: BaseException) -> str | None:
        return explain(error, self._settings.fullgraph)

    def report(self) -> CompileReport:
        return self._watch.report(self._settings.cache)

    def close(self) -> None:
        self._watch.close()
        if self._fresh is not None:
            shutil.rmtree(self._fresh, ignore_errors=True)
            _remove_if_empty(self._fresh.parent)

    def _compile(self, module: nn.Module) -> None:
        # Not module.compile(): on a class that lives in torch.nn (Sequential, TransformerEncoder)
        # Dynamo skips the call and the model runs eager without a word (torch 2.13).
        module.forward = self._compiled(module.forward)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(
            function,
            backend=self._backend,
            mode=self._settings.mode,
            fullgraph=self._settings.fullgraph,
            dynamic=self._settings.dynamic,
        )


def _backend(name: str) -> Any:
    """A registered name as it is; an import path (with a dot) as what it leads to."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute) if module else name


def _use_cache(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory.absolute())


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return  # another rank still has its own in it
