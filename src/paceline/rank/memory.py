"""What a job will hold in memory, before it holds any of it: by one step of a copy of it on fake
tensors, which have shapes and no contents.

`python -m paceline.rank.memory` does it for planned jobs: one a line, as JSON, in and out.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from paceline import config
from paceline.rank.room import available_bytes, shards
from paceline.record.memory import Sizes, section, unknown
from paceline.types import Batch, Context, Data, Precision, Run, World


def estimate(
    job: dict[str, Any], context: Context, data: Data, model: nn.Module, precision: Precision
) -> dict[str, Any]:
    """The record's `memory.estimate`, of a rank of `job`, a frozen config. Never raises: what can't
    be known has its reason.

    `model`: as it was made, converted by the precision, with activation checkpointing, neither
    compiled nor wrapped nor moved; it is copied. Allocates nothing of its size.
    """
    try:
        with _quietly():
            found = _section(job, context, sizes(job, context, data, model, precision))
    except Exception as error:
        return unknown(_why(error))
    if not found["fits"]:
        logging.getLogger("memory").warning(found["advice"])
    return found


def planned(job: dict[str, Any], world: World) -> dict[str, Any]:
    """The same for a job that is only planned: its model is made on fake tensors, its data source
    opened, to read."""
    run: Run = config.settings(job["run"], Run)
    context = Context(world, run, Path(), config.build)
    try:
        with _quietly():
            data = config.build(job["data"], context)
            with FakeTensorMode():
                model = config.build(job["model"], context).train()
            # on the meta device: a module can't convert fake parameters (torch 2.13)
            _replace(model, torch.device("meta"))
            precision = config.build(job["precision"], context)
            precision.prepare(model)
            config.build(job["activation_checkpointing"], context)(model)
            return _section(job, context, sizes(job, context, data, model, precision))
    except Exception as error:
        return unknown(_why(error))


def sizes(
    job: dict[str, Any], context: Context, data: Data, model: nn.Module, precision: Precision
) -> Sizes:
    """Bytes of the parts of `job`, whole, eager: a compiler keeps other activations, mostly fewer.
    `model`: as for `estimate`."""
    device = context.world.device
    seen = _one_batch(data, device)
    fake = FakeTensorMode(allow_non_fake_inputs=True)  # tensors that a module of code holds
    with FakeCopyMode(fake):
        model = copy.deepcopy(model)
    with fake, device:
        _replace(model, device)
        loss = config.build(job["loss"], context)  # one of its own: a loss may keep tensors
        held = [*model.parameters(), *model.buffers()]
        with Live(held) as live:
            batch = _fake_batch(seen, getattr(data, "micro_batch_size", None))
            with precision.forward():
                kept = loss(model, batch)
            activations = live.bytes()
        del kept, batch
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = _optimizer_bytes(job, context, trained)
    blocks = _blocks(model)
    return Sizes(
        parameters=_bytes(held),
        gradients=_bytes(trained),
        optimizer=optimizer,
        activations=activations,
        largest_block=max(blocks, default=0),
        outside_blocks=_bytes(model.parameters()) - sum(blocks),
        gathered_share=_gathered_share(model, precision.compute_dtype),
    )


class Live(TorchDispatchMode):
    """Which memory that was taken inside is still held: what autograd keeps for backward, whoever
    keeps it there (saved tensors, inputs of checkpointed blocks, results that these keep).

    `known`: tensors whose memory is not counted.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {t.untyped_storage()._cdata for t in known}
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._known:
                    # a weak reference keeps the address from being used again
                    self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    def bytes(self) -> int:
        return sum(size for held, size in self._made.values() if not held.expired())


def _section(job: dict[str, Any], context: Context, found: Sizes) -> dict[str, Any]:
    world, strategy = context.world, job["strategy"]
    parts = shards(strategy, world)
    return section(found, strategy, world.world_size, parts, available_bytes(world))


@contextmanager
def _quietly() -> Iterator[None]:
    """Around code of the user's that will run again, for real: it warns then, and what it sets for
    the whole process is put back."""
    dtype, threads, environment = (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        dict(os.environ),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(environment)


def _replace(model: nn.Module, device: torch.device) -> None:
    """Parameters and buffers by empty ones on `device`; those that are shared stay so."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, old in list(own.items()):
                if old is None:
                    continue
                if id(old) not in made:
                    shape, strides = old.shape, old.stride()
                    new = torch.empty_strided(shape, strides, dtype=old.dtype, device=device)
                    if isinstance(old, nn.Parameter):
                        new = nn.Parameter(new, requires_grad=old.requires_grad)
                    made[id(old)] = new
                setattr(module, name, made[id(old)])


def _one_batch(data: Data, device: torch.device) -> Batch:
    """A real one, held out, as the loss would get it: `prepare` may keep tensors for later."""
    batch = next(iter(data.held_out(1)), None)
    prepare = getattr(data, "prepare", None)
    if prepare is None:
        return batch
    return prepare(tree_map_only(Tensor, lambda t: t.to(device), batch))


def _fake_batch(seen: Batch, micro_batch_size: int | None) -> Batch:
    """A batch of the shapes of `seen`, in the size of a micro-batch where that is known."""
    tensors = [leaf for leaf in tree_leaves(seen) if isinstance(leaf, Tensor)]
    if not tensors:
        raise ValueError("the data source gives no held-out batch to look at")
    found = tensors[0].shape[0]

    def fake(tensor: Tensor) -> Tensor:
        size = micro_batch_size if micro_batch_size and tensor.shape[:1] == (found,) else None
        shape = (size, *tensor.shape[1:]) if size else tensor.shape
        return torch.empty(shape, dtype=tensor.dtype)

    return tree_map_only(Tensor, fake, seen)


def _optimizer_bytes(job: dict[str, Any], context: Context, trained: list[nn.Parameter]) -> int:
    """Of the state that the job's own optimizer makes in its first step."""
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    optimizer = config.build(job["optimizer"], context, params=trained)
    optimizer.step()
    return _bytes(tree_leaves([*optimizer.state.values()]))


def _bytes(values: Iterable[Any]) -> int:
    """Of the tensors among `values`, memory that they share once."""
    storages = [v.untyped_storage() for v in values if isinstance(v, Tensor)]
    return sum({s._cdata: s.nbytes() for s in storages}.values())


def _blocks(model: nn.Module) -> list[int]:
    """Bytes of each of the model's blocks; none where it doesn't define them."""
    blocks = getattr(model, "blocks", None)
    if blocks is None or isinstance(blocks, nn.Module):
        return []
    return [_bytes(block.parameters()) for block in blocks()]


def _gathered_share(model: nn.Module, compute_dtype: torch.dtype | None) -> float:
    """Bytes of whole parameters as FSDP gathers them, over those in their own dtype."""
    own = max((p.element_size() for p in model.parameters()), default=1)
    return min(1.0, compute_dtype.itemsize / own) if compute_dtype else 1.0


def _why(error: Exception) -> str:
    return f"it can't run on fake tensors ({type(error).__name__}: {config.first_line(error)})"


def main() -> None:
    """A line {config, world_size, local_world_size, device} in, a line out."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as in the command: a user's own class must be found
    answers, sys.stdout = sys.stdout, sys.stderr  # what a model prints is no answer
    known: dict[str, dict[str, Any]] = {}
    for line in sys.stdin:
        if line not in known:
            job = json.loads(line)
            os.environ["LOCAL_WORLD_SIZE"] = str(job["local_world_size"])
            world = World(0, 0, 0, job["world_size"], torch.device(job["device"]))
            known[line] = planned(job["config"], world)
        print(json.dumps(known[line]), file=answers, flush=True)


if __name__ == "__main__":
    main()
