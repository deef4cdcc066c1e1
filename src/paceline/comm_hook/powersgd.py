"""comm_hook=powersgd: matrices travel as two thin factors (Vogels et al. 2019, arXiv 1905.13727).

torch's own hook. Its memory is kept by the names of the parameters in a checkpoint, not by
buckets: DDP makes its buckets anew after the first step of every process.
"""

# no `from __future__ import annotations` here: DDP compares a hook's annotations with the types

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.comm_hook.factors import Layout, joined, parted
from paceline.comm_hook.finite import all_finite
from paceline.types import Context, at_least

OVERFLOW = (
    "comm_hook=powersgd: a finite gradient came back as no number, as a matrix of zeros does "
    "with comm_hook.orthogonalization_epsilon=0; raise it (1e-8), or use comm_hook=bf16 or none"
)


@dataclass(frozen=True)
class PowerSgd:
    """`start_powerSGD_iter`: plain averaging in the steps before. `min_compression_rate`: a matrix
    whose factors save less travels whole, as all vectors do."""

    matrix_approximation_rank: int
    start_powerSGD_iter: int
    min_compression_rate: float
    use_error_feedback: bool
    warm_start: bool
    orthogonalization_epsilon: float
    batch_tensors_with_same_shape: bool

    def __post_init__(self) -> None:
        at_least(1, matrix_approximation_rank=self.matrix_approximation_rank)
        if self.start_powerSGD_iter < 2:
            raise ValueError(
                f"start_powerSGD_iter={self.start_powerSGD_iter}: DDP makes its buckets anew after "
                "the first step, and compression must begin after that; give 2 or more"
            )
        if self.min_compression_rate <= 0:
            raise ValueError(f"min_compression_rate={self.min_compression_rate}: give more than 0")
        if self.orthogonalization_epsilon < 0:
            raise ValueError(
                f"orthogonalization_epsilon={self.orthogonalization_epsilon}: give 0 or more"
            )

    def open(self, context: Context) -> "LowRank":
        return LowRank(self, context.run.seed)


class LowRank:
    """`lossy_rtol` speaks of the first step, in which nothing is compressed. `waited_s`: seconds
    that backward has stood still for it."""

    lossy_rtol = 0.0
    overflow: str | None = OVERFLOW

    def __init__(self, settings: PowerSgd, seed: int) -> None:
        self._state = PowerSGDState(None, random_seed=seed, **asdict(settings))
        self._ddp: DistributedDataParallel | None = None
        self._names: dict[int, str] = {}
        self._layouts: dict[int, Layout] = {}  # by bucket: whose memory stands there, and where
        self._owners: dict[int, tuple[int, ...]] = {}  # the same in short, by identity
        self._apart: dict[str, dict[str, Tensor]] = {}  # by parameter: what no bucket has yet
        self._order: list[str] = []  # as loaded: what holds until buckets come
        self._broken: list[Tensor] = []
        self._item_bytes = 4
        self.waited_s = 0.0

    @property
    def sent(self) -> list[int] | None:
        """Bytes of the all-reduces of a step: of each bucket the vectors, P and Q; None before it
        compresses, when there is nothing but the bucket."""
        if not self._layouts:
            return None
        return [n * self._item_bytes for one in self._layouts.values() for n in one.sent()]

    @property
    def reductions(self) -> int:
        return 3 if self._layouts else 1

    @property
    def _started(self) -> bool:
        return bool(self._state.iter >= self._state.start_powerSGD_iter)

    def register(self, model: torch.nn.Module) -> None:
        assert isinstance(model, DistributedDataParallel)
        self._ddp = model
        self._names = {id(p): name for name, p in model.module.named_parameters()}
        model.register_comm_hook(None, self._reduce)

    def _reduce(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer()
        self._item_bytes = gradient.element_size()
        if self._started:
            self._follow(bucket)
        before = all_finite(gradient)
        done = powerSGD_hook(self._state, bucket)
        if gradient.device.type == "cpu":
            # Its second and third all-reduce start in gloo's threads, when the one before has
            # ended: with several buckets under way each rank has its own order, and gloo aborts.
            start = time.perf_counter()
            done.wait()
            self.waited_s += time.perf_counter() - start

        def look(finished: torch.futures.Future[Tensor]) -> Tensor:
            averaged = finished.value()
            self._broken.append(before & ~all_finite(averaged))
            return averaged

        return done.then(look)

    def _follow(self, bucket: GradBucket) -> None:
        """The memory of this bucket, when others held its parameters in the last step."""
        index, owners = bucket.index(), tuple(map(id, bucket.parameters()))
        if self._owners.get(index) == owners:
            return
        if index in self._owners:
            self._take_apart()
        layout = Layout.of(bucket, self._names, self._state)
        self._owners[index], self._layouts[index] = owners, layout
        memory = joined(layout, self._apart)
        for name, store in self._stores().items():
            if name in memory:
                store[index] = memory[name].to(bucket.buffer().device)

    def _take_apart(self) -> None:
        self._apart = self._by_parameter()
        self._layouts.clear()
        self._owners.clear()
        for store in self._stores().values():
            store.clear()

    def _by_parameter(self) -> dict[str, dict[str, Tensor]]:
        found = dict(self._apart)
        for index, layout in self._layouts.items():
            memory = {n: store[index] for n, store in self._stores().items() if index in store}
            found |= parted(layout, memory)
        return found

    def _stores(self) -> dict[str, dict[int, Tensor]]:
        state = self._state
        return {"error": state.error_dict, "p": state.p_memory_dict, "q": state.q_memory_dict}

    def take_nonfinite(self) -> Tensor | None:
        broken, self._broken = self._broken, []
        return torch.stack(broken).any() if broken else None

    def state_dict(self) -> dict[str, Any]:
        """Of this rank: its error is its own. Copies."""
        name, keys, position, has_gauss, cached = self._state.rng.get_state(legacy=True)
        buckets = [self._layouts[index] for index in sorted(self._layouts)]
        order = [parameter for bucket in buckets for parameter, _ in bucket.parameters]
        return {
            "iter": self._state.iter,
            "order": order or self._order,
            "memory": {
                parameter: {what: tensor.clone() for what, tensor in memory.items()}
                for parameter, memory in self._by_parameter().items()
            },
            "rng": [
                str(name),
                [int(k) for k in keys],
                int(position),
                int(has_gauss),
                float(cached),
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order = state["order"]
        self._make_buckets(self._order)
        self._state.iter = state["iter"]
        self._take_apart()
        self._apart = state["memory"]
        self._state.rng.set_state(tuple(state["rng"]))

    def _make_buckets(self, order: list[str]) -> None:
        """DDP's buckets as they were in the run that goes on: in others, factors are aligned
        otherwise and so rounded otherwise. DDP makes them after its first backward, in the order
        in which gradients came: here of zeros, in that `order`. A collective."""
        ddp = self._ddp
        if ddp is None or not order or ddp.find_unused_parameters or ddp.static_graph:
            return  # made once, or learnt from a whole step
        parameters = dict(ddp.module.named_parameters())
        ddp.reducer.prepare_for_backward([])
        # backward takes first what was made last
        nothing = [(parameters[name] * 0).sum() for name in reversed(order)]
        total = nothing[0]
        for one in nothing[1:]:
            total = total + one
        total.backward()
        for parameter in parameters.values():
            parameter.grad = None
        self._broken.clear()
