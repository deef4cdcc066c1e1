"""Which differences between two loss curves are rounding, and which are another training."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.compare.numerics import losses_agree
from paceline.record.schema import empty_record


def made(
    loss: list[Any],
    compute: str | None = "float32",
    asked: str | None = None,
    float32_matmul: str | None = None,
    work: str = "w",
) -> dict[str, Any]:
    record = empty_record()
    record["job"]["work_hash"] = work
    record["numerics"]["loss"] = loss
    record["effective"] = {"precision": {"compute": compute, "float32_matmul": float32_matmul}}
    record["requested"] = {"precision": asked}
    return record


CURVE = [5.0 * 0.98**i for i in range(100)]


def test_the_same_curve() -> None:
    assert losses_agree(made(CURVE), made(CURVE)) == (0.0, None)


def test_the_first_steps_are_held_tightly() -> None:
    off = [*CURVE]
    off[7] *= 1 + 0.99e-4
    assert losses_agree(made(off), made(CURVE)) == (pytest.approx(0.99e-4), None)
    off[7] = CURVE[7] * (1 + 2e-4)
    deviation, reason = losses_agree(made(off), made(CURVE))
    assert deviation == pytest.approx(2e-4)
    assert reason is not None
    assert f"the loss of step 7 is {off[7]:.6g}, the baseline's {CURVE[7]:.6g}" in reason
    assert reason.endswith("0.02 % off, 0.01 % is allowed")


def test_later_steps_may_wander() -> None:
    off = [*CURVE]
    off[10] *= 1.5
    off[60] *= 0.5
    assert losses_agree(made(off), made(CURVE)) == (pytest.approx(0.5), None)


def test_the_end_is_held_by_its_mean() -> None:
    off = [*CURVE[:90], *(x * 1.009 for x in CURVE[90:])]
    assert losses_agree(made(off), made(CURVE))[1] is None
    off = [*CURVE[:90], *(x * 1.011 for x in CURVE[90:])]
    _, reason = losses_agree(made(off), made(CURVE))
    assert reason is not None
    assert reason.startswith("the mean loss of steps 90 to 99 is ")
    assert reason.endswith("1.1 % off, 1.06 % is allowed")  # 1 %, and 3 standard errors


def test_an_end_that_wanders_around_the_baseline_is_the_same_training() -> None:
    # rounding, grown up: single steps are far off, on both sides of the baseline
    around = [1.4, 0.7, 1.3, 0.5, 1.6, 0.8, 1.2, 0.9, 1.5, 0.6]
    off = [*CURVE[:90], *(x * f for x, f in zip(CURVE[90:], around, strict=True))]
    deviation, reason = losses_agree(made(off), made(CURVE))
    assert deviation == pytest.approx(0.6)
    assert reason is None
    # as far, but on one side only
    above = [*CURVE[:90], *(x * (1 + abs(f - 1)) for x, f in zip(CURVE[90:], around, strict=True))]
    assert losses_agree(made(above), made(CURVE))[1] is not None


def test_a_short_run_has_no_scatter_to_excuse_it() -> None:
    off = [*CURVE[:27], CURVE[27] * 1.3, CURVE[28] * 0.7, CURVE[29] * 1.3]
    assert losses_agree(made(off), made(CURVE[:30]))[1] is not None


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (("bfloat16", None), ("float32", None)),
        (("float32", None), ("float16", None)),
        (("bfloat16, float32", None), ("float32", None)),
        (("float32", "tf32"), ("float32", "fp32")),
        ((None, "bf16"), ("float32", "fp32")),
        ((None, "fp16"), ("float32", "fp32")),
        ((None, "bf16_pure"), ("float32", "fp32")),
        (("float32", "own", "ieee, convolutions tf32"), ("float32", "fp32", "ieee")),
    ],
)
def test_the_lower_precision_sets_the_tolerance(mine: Any, theirs: Any) -> None:
    close = [x * 1.019 for x in CURVE]
    assert losses_agree(made(close, *mine), made(CURVE, *theirs))[1] is None
    far = [x * 1.021 for x in CURVE]
    _, reason = losses_agree(made(far, *mine), made(CURVE, *theirs))
    assert reason is not None
    assert reason.startswith("the loss of step 0") and reason.endswith("2 % is allowed")
    late = [*CURVE[:90], *(x * 0.96 for x in CURVE[90:])]
    _, reason = losses_agree(made(late, *mine), made(CURVE, *theirs))
    assert reason is not None and reason.endswith("4 % off, 3.23 % is allowed")


def test_only_common_steps_count() -> None:
    assert losses_agree(made(CURVE[:30]), made(CURVE)) == (0.0, None)
    assert losses_agree(made([]), made(CURVE)) == (None, None)
    assert losses_agree(made(CURVE), made([])) == (None, None)


def test_other_work_is_not_compared() -> None:
    assert losses_agree(made([1.0], work="v"), made([2.0])) == (None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", None])
def test_a_loss_that_is_no_number(text: Any) -> None:
    broken = [*CURVE[:50], text, *CURVE[51:]]
    deviation, reason = losses_agree(made(broken), made(CURVE))
    assert deviation == math.inf
    assert reason is not None and reason.startswith("the loss of step 50 is ")
    deviation, reason = losses_agree(made(CURVE), made(broken))
    assert deviation == math.inf and reason is not None
    assert losses_agree(made(broken), made(broken)) == (0.0, None)
    assert losses_agree(made([text]), made([text])) == (None, None)


def test_a_loss_of_zero() -> None:
    assert losses_agree(made([0.0]), made([0.0])) == (0.0, None)
    deviation, reason = losses_agree(made([0.1]), made([0.0]))
    assert deviation is not None and deviation > 1 and reason is not None


def test_a_typical_fp32_reordering_passes_and_another_seed_does_not() -> None:
    noise = np.random.default_rng(0).normal(size=(3, 100))
    drift = 1e-7 * np.cumsum(np.abs(noise[0]))  # rounding grows from step to step
    base = np.array(CURVE) * (1 + 0.02 * noise[1])
    assert losses_agree(made((base * (1 + drift)).tolist()), made(base.tolist()))[1] is None
    other = np.array(CURVE) * (1 + 0.02 * noise[2])
    assert losses_agree(made(other.tolist()), made(base.tolist()))[1] is not None


@given(
    st.lists(st.one_of(st.floats(), st.sampled_from(["nan", "inf", None])), max_size=25),
    st.lists(st.floats(), max_size=25),
)
def test_no_curve_breaks_it(mine: list[Any], theirs: list[Any]) -> None:
    deviation, _ = losses_agree(made(mine), made(theirs))
    assert deviation is None or deviation >= 0
    assert losses_agree(made(theirs), made(theirs))[1] is None
