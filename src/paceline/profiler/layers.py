"""Which layer an operator belongs to: marks around forwards, sequence numbers in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.profiler import record_function
from torch.utils.hooks import RemovableHandle

MARK = "layer: "
EVALUATE = "autograd::engine::evaluate_function: "
OUTSIDE = "(outside)"
"""Backward of what no layer's forward did: of the loss, and of the model's own forward."""

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Never called themselves."""

INSIDE_COMPILED = (
    "what is inside of a compiled module is one graph, which has no layers any more; compile=off "
    "shows them, compile=regional the blocks"
)


class Layers:
    """The modules of `model` that get a row of their own: its blocks, the modules beside them, and
    the children of both. `wrapped`: the same model as it is trained; inside of what is compiled
    there nothing is marked, since hooks are no part of a graph."""

    def __init__(self, model: nn.Module, wrapped: nn.Module) -> None:
        chosen, compiled = dict(_rows(model)), set(_inside_compiled(wrapped))
        self.modules = {name: m for name, m in chosen.items() if id(m) not in compiled}
        self.left_out = len(chosen) - len(self.modules)
        self._handles: list[RemovableHandle] = []

    def mark(self) -> None:
        """Until `unmark`, each forward of a layer is a range of the trace."""
        for name, module in self.modules.items():
            enter, leave = _marker(f"{MARK}{name}")
            self._handles += [
                module.register_forward_pre_hook(enter),
                # also after an error: checkpointed blocks end their second forward by one
                module.register_forward_hook(leave, always_call=True),
            ]

    def unmark(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def why(self) -> str | None:
        """Why layers are missing; None where none is."""
        return INSIDE_COMPILED if self.left_out else None


@dataclass
class Row:
    """Seconds of the recorded steps in a layer, without those in rows of layers inside of it.
    Forward on the CPU is all that its forward did, Python too; backward what autograd computed for
    its operators, and what was computed again there. Device seconds are those of the kernels that
    these started."""

    calls: int = 0
    forward_self_s: float = 0.0
    backward_self_s: float = 0.0
    forward_device_self_s: float = 0.0
    backward_device_self_s: float = 0.0


def by_layer(events: Iterable[Any]) -> dict[str, Row]:
    """Rows of torch's FunctionEvents, by layer in the order of their first forward, what is in none
    under OUTSIDE.

    A backward node carries the number that its operator had when it began: of those that began with
    this number on the forward's thread the last is the one that made the node, for it then raised
    the number. Accumulating a gradient has no number, and always runs next after the node that
    gave the gradient.
    """
    rows: dict[str, Row] = {}
    owners: dict[int, tuple[bool, str]] = {}  # of an event: is it backward, and whose
    numbered: dict[tuple[int, int], str] = {}
    latest: dict[int, str] = {}
    host = [e for e in events if on_host(e) and not e.is_async]
    for event in sorted(host, key=lambda e: (e.time_range.start, -e.time_range.end)):
        parent = owners.get(id(event.cpu_parent)) if event.cpu_parent is not None else None
        if event.name.startswith(MARK):
            owner: tuple[bool, str] | None
            owner = (parent is not None and parent[0], event.name.removeprefix(MARK))
            rows.setdefault(owner[1], Row()).calls += not owner[0]
        elif event.name.startswith(EVALUATE):
            numberless = event.sequence_nr < 0
            known = numbered.get((event.fwd_thread, event.sequence_nr), OUTSIDE)
            owner = (True, latest.get(event.thread, OUTSIDE) if numberless else known)
            latest[event.thread] = owner[1]
        else:
            owner = parent
            if event.sequence_nr >= 0 and not (owner is not None and owner[0]):
                key = (event.thread, event.sequence_nr)
                numbered[key] = OUTSIDE if owner is None else owner[1]
        if owner is not None:
            owners[id(event)] = owner
            _add(rows.setdefault(owner[1], Row()), owner[0], event)
    return rows


def on_host(event: Any) -> bool:
    return bool(event.device_type.name == "CPU")


def _add(row: Row, backward: bool, event: Any) -> None:
    host_s = event.self_cpu_time_total / 1e6
    # a range has the kernels of all operators in it, which count themselves
    device_s = 0.0 if event.is_user_annotation else event.self_device_time_total / 1e6
    if backward:
        row.backward_self_s += host_s
        row.backward_device_self_s += device_s
    else:
        row.forward_self_s += host_s
        row.forward_device_self_s += device_s


def _marker(text: str) -> tuple[Callable[..., None], Callable[..., None]]:
    ranges: list[record_function] = []  # a module may call itself

    def enter(module: nn.Module, inputs: Any) -> None:
        ranges.append(record_function(text))
        ranges[-1].__enter__()

    def leave(module: nn.Module, inputs: Any, outputs: Any) -> None:
        if ranges:
            ranges.pop().__exit__(None, None, None)

    return enter, leave


def _rows(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    define = getattr(model, "blocks", None)
    blocks = set() if define is None or isinstance(define, nn.Module) else set(define())
    for name, module in _unpacked(model, "", blocks):
        yield name, module
        yield from _unpacked(module, f"{name}.", set())


def _unpacked(
    module: nn.Module, prefix: str, blocks: set[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    """The children, in place of containers and of what holds blocks that which is in it."""
    for name, child in module.named_children():
        inner = child not in blocks and any(m in blocks for m in child.modules())
        if inner or isinstance(child, CONTAINERS):
            yield from _unpacked(child, f"{prefix}{name}.", blocks)
        else:
            yield f"{prefix}{name}", child


def _inside_compiled(wrapped: nn.Module) -> Iterator[int]:
    """The ids of modules that run within a compiled module's graph."""
    for module in wrapped.modules():
        if _is_compiled(module):
            yield from (id(m) for m in module.modules() if m is not module)


def _is_compiled(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    return (
        hasattr(getattr(forward, "__func__", forward), "_torchdynamo_orig_callable")
        or getattr(module, "_compiled_call_impl", None) is not None  # module.compile()
        or "_orig_mod" in module._modules  # torch.compile(module)
    )
