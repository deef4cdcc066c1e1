"""The protocols of live objects: what a choice's `open` returns.

Shapes: B = local micro-batch, T = sequence length. Units stand in names: `_s`, `_gib`, `_per_s`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from paceline.types.facts import CompileReport, TrainState, World

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Batch = Any
"""Any pytree of tensors with leading dimension B."""


class Loss(Protocol):
    """`(model, batch) -> (sum [] f32, weight [] f32)`: the mean loss is sum / weight over all
    micro-batches and ranks. `fixed_weight`: every micro-batch has the same weight, so that no
    collective is needed to know the global one. Absent means False, which is always right."""

    fixed_weight: bool

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]: ...


class Data(Protocol):
    """An endless source of micro-batches for this rank. `sampling` is "seeded" when the samples of
    step k are a function of (seed, k) alone, else "own". Optional, for the record: `queued_batches`
    (held ready by loader workers), `workers_alive`, `samples` (one epoch), `global_batch_size`,
    `micro_batch_size`. Optional, for the loop: `prepare(batch)`, or None, is called on each batch
    once it is on the device, in training and in evaluation, and gives what the loss gets."""

    unit: str
    sampling: Literal["seeded", "own"]

    def count(self, batch: Batch) -> int:
        """Units in a batch."""
        ...

    def batches(self, first_step: int) -> Iterator[Batch]:
        """This rank's micro-batches from `first_step` on, `accumulation_steps` of them a step."""
        ...

    def held_out(self, batches: int) -> Iterator[Batch]:
        """This rank's share of `batches` held-out batches; the same ones at every call."""
        ...

    def num_batches(self) -> int | None:
        """Micro-batches this rank can give; None: endless."""
        ...

    def digest(self, micro_batches: int) -> int | None:
        """Sum mod 2**64 over the samples in the first `micro_batches` handed out, so that the
        digests of ranks add up to the digest of the job; None under `sampling=own`."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Compile(Protocol):
    """Compiles in place, so that state-dict keys stay as they were. `compare_eager`: measure eager
    steps beside compiled ones after the window."""

    compare_eager: bool

    def __call__(self, module: nn.Module, inner: Sequence[nn.Module] = ()) -> None:
        """Compile `module`; where a wrapper acts between the modules `inner` of it, those one by
        one, whatever the scope."""
        ...

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The same for the optimizer's step, before a scheduler is made for it."""
        ...

    def tick(self, step: int) -> bool:
        """After each step: was anything compiled in it? Cheap."""
        ...

    def explain(self, error: BaseException) -> str | None:
        """A compiler's error in a sentence: reason, place, way out; None for any other error."""
        ...

    def report(self) -> CompileReport: ...

    def close(self) -> None: ...


class Precision(Protocol):
    """Owns autocast, loss scaling and the optimizer step. `backward` stands in the loop.

    `skipped` [] bool on the device: the last step left the parameters as they were, because a
    gradient overflowed; None where that can't happen. Nobody may wait for it within the loop.
    `compute_dtype`: what autocast gives matrix products; None where there is none. A strategy whose
    wrapper casts in its place (FSDP's MixedPrecisionPolicy) sets `cast_by_wrapper` before the first
    forward, which then opens no autocast.
    """

    skipped: Tensor | None
    compute_dtype: torch.dtype | None
    cast_by_wrapper: bool

    def prepare(self, model: nn.Module) -> None:
        """Convert a model that was just made, in place, before it is wrapped or compiled."""
        ...

    def forward(self) -> AbstractContextManager[Any]: ...

    def scale(self, loss: Tensor) -> Tensor: ...

    def step(self, optimizer: torch.optim.Optimizer, clip: float | None) -> Tensor | None:
        """Clip, step; returns the global gradient norm [] f32 before clipping, None without."""
        ...

    def report(self) -> dict[str, Any]:
        """For the record, after the last step: `loss_scale`, None where there is none."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class CommHook(Protocol):
    """How gradients travel between ranks. Its state is this rank's own: no two ranks share it.

    `lossy_rtol`: the relative L2 error that it may add to the gradient of the first step; 0: none.
    `overflow`: what to say of a gradient that `take_nonfinite` finds; None where it finds none.
    Optional: `reductions`, all-reduces for each of DDP's buckets now (absent: 1); `sent`, the bytes
    of each of a step's, where threads of the hook's own begin some (absent or None: those that are
    seen are all); `waited_s`, seconds that backward has stood still inside of it (absent: 0).
    """

    @property
    def lossy_rtol(self) -> float: ...

    @property
    def overflow(self) -> str | None: ...

    def register(self, model: nn.Module) -> None:
        """Hook into a model that a strategy has just wrapped."""
        ...

    def take_nonfinite(self) -> Tensor | None:
        """[] bool on the device: since the last call a gradient that was finite came back infinite
        or as no number; None where that can't happen."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ActivationCheckpointing(Protocol):
    """Has blocks drop their activations in forward and compute them again in backward."""

    def __call__(self, model: nn.Module) -> None:
        """In place, so that state-dict keys stay; before anything is compiled or wrapped."""
        ...

    def report(self) -> str:
        """What was done, for the record: `off`, `4 blocks`."""
        ...


class Strategy(Protocol):
    """Owns the order of placement, wrapping and compiling. Optional: `building(world)`, a context
    manager around the making of the model; `collective_forward`: each forward is a collective, so
    that all ranks must take part in every one; `settle(model)`, after forwards without a backward:
    give back what they gathered; `describe(is_compiled)`, what was wrapped, in that order, for the
    record; `explain(error, model)`: an error of the wrapper in a sentence, None for any other;
    `reductions(model)`, of gradients that a step needs (of DDP and FSDP they are known anyway);
    `unused_in_some_step(model)`, names of parameters that some rank left without a gradient in some
    step, None where nobody looked."""

    def wrap(
        self,
        model: nn.Module,
        world: World,
        compile: Compile,
        precision: Precision,
        comm_hook: CommHook,
    ) -> nn.Module: ...

    def grad_sync(self, model: nn.Module, enabled: bool) -> AbstractContextManager[Any]:
        """Around forward AND backward of a micro-batch; off on all but the last of a step."""
        ...


class Checkpoint(Protocol):
    def load(self, state: TrainState) -> int:
        """Restore the newest committed state in place; returns the step to go on from, 0: fresh."""
        ...

    def save(self, state: TrainState, step: int, now: bool) -> bool:
        """Save when `step` is due or `now`; returns when training may go on. True if that, or a
        save that goes on in the background, disturbed this step. Raises CheckpointError for one
        that failed since the last call."""
        ...

    def finish(self) -> None:
        """Wait for what goes on in the background; nothing is saved afterwards."""
        ...

    def report(self) -> dict[str, Any]:
        """The `checkpoint` section of the record."""
        ...


class Profiler(Protocol):
    """Looks into single steps. A choice of it opens by `open(context, model, wrapped, slowest)`:
    the bare model, the model as it is trained, and `slowest()`, a collective, which gives the rank
    that works longest by itself in the steps so far. Training goes on whatever breaks in it."""

    def __enter__(self) -> Profiler: ...

    def __exit__(self, *error: object) -> None:
        """After the training or the error that ended it: no collective, and nothing raised."""
        ...

    def begin(self, step: int) -> None:
        """Before each step of the training."""
        ...

    def tick(self) -> bool:
        """After each step; True if the step that just ended was disturbed by the profiler, the
        same on all ranks."""
        ...

    def report(self) -> dict[str, Any]:
        """This rank's, nothing or some of: `cycles`, what was recorded; `snapshots`, files from the
        job's directory; `problems` and `reasons`, sentences for the record."""
        ...


class Diagnose(Protocol):
    def explain(
        self, record: dict[str, Any], config: dict[str, Any], choices: dict[str, str]
    ) -> dict[str, Any]:
        """The `diagnosis` section of a record."""
        ...
