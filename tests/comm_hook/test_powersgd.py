"""comm_hook=powersgd over gloo: several buckets, its memory in a checkpoint, its feedback."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.comm_hook.powersgd import PowerSgd
from paceline.types import World
from tests import ranks
from tests.comm_hook.training import POWERSGD, Trained, error, exact

pytestmark = pytest.mark.distributed

STEPS, SAVED_AT = 8, 5
NAMES = ("powersgd", "powersgd_batched")


def trained(world: World) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in NAMES:
        unbroken, saved, after = Trained(name, world), {}, []
        errors, counts, bits, sums, rights = [], [], [], None, None
        for step in range(STEPS):
            if step == SAVED_AT:
                saved = kept(unbroken)
            right = exact(unbroken, step, 1)
            grads = unbroken.step(step)
            counts.append((unbroken.hook.reductions, unbroken.hook.sent))
            errors.append(error(grads, right))
            if step >= SAVED_AT:
                after.append(grads)
            sums, rights = added(sums, grads), added(rights, right)
            bits.append([float(g.double().sum()).hex() for g in grads])
        found[name] = {"errors": errors, "counts": counts, "bits": bits}
        found[name]["off"] = {
            "restored": gone_on(name, world, saved, saved["hook"], after),
            "in_other_buckets": gone_on(name, world, saved, {**saved["hook"], "order": []}, after),
            "forgotten": gone_on(name, world, saved, {**saved["hook"], "memory": {}}, after),
        }
        flag = unbroken.hook.take_nonfinite()
        found[name]["error_of_sum"] = error(sums, rights)
        found[name] |= {"broken": bool(flag), "memory": sorted(saved["hook"]["memory"])}
    found["zeros"] = zeros(world)
    return found


def added(sums: list[Tensor] | None, more: list[Tensor]) -> list[Tensor]:
    return more if sums is None else [s + m for s, m in zip(sums, more, strict=True)]


def several(world: World) -> list[str]:
    """The bits of the last of a few steps."""
    one = Trained("powersgd", world)
    grads = [one.step(step) for step in range(5)][-1]
    return [float(g.double().sum()).hex() for g in grads]


def gone_on(
    name: str, world: World, saved: dict[str, Any], hook: dict[str, Any], right: list[list[Tensor]]
) -> float:
    """How far the gradients of a resumed run are off those of the unbroken one."""
    resumed = Trained(name, world)
    resumed.ddp.module.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))  # it takes what it gets
    resumed.hook.load_state_dict(hook)
    steps = range(SAVED_AT, STEPS)
    return max(error(resumed.step(s), g) for s, g in zip(steps, right, strict=True))


def kept(trained: Trained) -> dict[str, Any]:
    """As a checkpoint has it: copies, in containers that torch.load takes with weights_only."""
    state = {
        "model": trained.ddp.module.state_dict(),
        "optimizer": trained.optimizer.state_dict(),
        "hook": trained.hook.state_dict(),
    }
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def zeros(world: World) -> list[bool]:
    """A gradient of zeros once it is compressed."""
    one = Trained("powersgd", world)
    finite = []
    for step in range(4):
        grads = one.step(step, factor=1.0 if step < 2 else 0.0)
        finite.append(all(bool(torch.isfinite(g).all()) for g in grads))
    return [*finite, not bool(one.hook.take_nonfinite())]


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return ranks.run(trained, 2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", NAMES)
def test_it_compresses_from_its_start_on(two: list[dict[str, Any]], name: str) -> None:
    errors = two[0][name]["errors"]
    assert max(errors[:2]) < 1e-6
    assert min(errors[2:]) > 1e-2
    # what is left out of a step is added to the next
    assert two[0][name]["error_of_sum"] < min(errors[3:])
    assert not two[0][name]["broken"]
    assert two[0][name]["counts"][:2] == [(1, None), (1, None)]
    # in bytes: vectors, P, Q of the two buckets, the last layers' first
    last = [4 * (4 + 4 * 400 + 400), 4 * 2 * 400, 4 * 2 * 512]  # [4, 400] would save too little
    first = [4 * 512, 4 * 2 * 512, 4 * 2 * 64]
    assert two[0][name]["counts"][2:] == [(3, [*last, *first])] * (STEPS - 2)


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_get_the_same(two: list[dict[str, Any]], name: str) -> None:
    assert two[0][name]["bits"] == two[1][name]["bits"]


@pytest.mark.parametrize("name", NAMES)
def test_a_resumed_run_goes_on_as_the_unbroken_one(two: list[dict[str, Any]], name: str) -> None:
    for rank in two:
        assert rank[name]["off"]["restored"] == 0
        assert rank[name]["off"]["in_other_buckets"] < 1e-4  # to rounding
        assert rank[name]["off"]["forgotten"] > 1e-2
        assert rank[name]["memory"] == sorted(f"{n}.{w}" for n in "024" for w in ("weight", "bias"))


def test_a_gradient_of_zeros_stays_finite(two: list[dict[str, Any]]) -> None:
    assert two[0]["zeros"] == [True] * 5


@pytest.mark.slow
def test_four_ranks_with_several_buckets_do_not_abort() -> None:
    found = ranks.run(several, 4)
    assert all(rank == found[0] for rank in found)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("start_powerSGD_iter", 1, "DDP makes its buckets anew after the first step"),
        ("matrix_approximation_rank", 0, "matrix_approximation_rank=0: give 1 or more"),
        ("min_compression_rate", 0.0, "min_compression_rate=0.0: give more than 0"),
        ("orthogonalization_epsilon", -1.0, "orthogonalization_epsilon=-1.0: give 0 or more"),
    ],
)
def test_wrong_values_are_refused(key: str, value: Any, said: str) -> None:
    settings: dict[str, Any] = {k: v for k, v in POWERSGD.items() if k != "_target_"}
    with pytest.raises(ValueError, match=said):
        PowerSgd(**settings | {key: value})
