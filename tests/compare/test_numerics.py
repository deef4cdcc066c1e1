"""Which differences between two loss curves are rounding, and which are another training."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.compare.numerics import agree, losses_agree
from paceline.compare.spread import computes
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


def nudged_runs(curves: list[list[float]], dtype: str = "float32") -> list[dict[str, Any]]:
    runs = [made(curve) for curve in curves]
    for number, run in enumerate(runs):
        run["job"] |= {"config_hash": None, "nudge": {"number": number, "dtype": dtype}}
        run["status"]["state"] = "completed"
    return runs


def off_by(share: float, start: int = 0) -> list[float]:
    return [*CURVE[:start], *(x * (1 + share) for x in CURVE[start:])]


RUNS = nudged_runs([off_by(1e-4, 20), off_by(-2e-4, 40)])


def test_equal_is_bit_by_bit() -> None:
    found = agree(made(CURVE), made(CURVE), RUNS)
    assert (found.verdict, found.gate, found.deviation) == ("equal", "nudged", 0.0)
    found = agree(made(off_by(1e-15)), made(CURVE), [])
    assert (found.verdict, found.gate) == ("within", "tolerance")


def test_the_envelope_of_nudged_runs_by_hand() -> None:
    # allowed: 1e-6 before step 20, 4 x 1e-4 of the curve's value then, 4 x 2e-4 from step 40 on
    assert agree(made(off_by(3.9e-4, 20)), made(CURVE), RUNS).verdict == "within"
    found = agree(made(off_by(4.1e-4, 20)), made(CURVE), RUNS)
    assert (found.verdict, found.gate) == ("diverged", "nudged")
    assert found.reason is not None and found.reason.startswith("the loss of step 20 is ")
    assert found.reason.endswith("2 nudged baselines allow 1.3e-03")
    early = agree(made(off_by(3.9e-4, 19)), made(CURVE), RUNS)
    assert early.reason is not None and early.reason.startswith("the loss of step 19 is ")
    assert agree(made(off_by(0.9e-6)), made(CURVE), RUNS).verdict == "within"
    assert agree(made(off_by(7e-4, 40)), made(CURVE), RUNS).verdict == "within"


def test_what_the_envelope_has_reached_it_keeps() -> None:
    runs = nudged_runs([[*CURVE[:10], CURVE[10] * 1.01, *CURVE[11:]]] * 2)
    assert agree(made(off_by(1e-3, 30)), made(CURVE), runs).verdict == "within"
    assert agree(made(off_by(1e-3, 9)), made(CURVE), runs).verdict == "diverged"


def test_gradient_norms_are_held_the_same_way() -> None:
    mine, base = made(CURVE), made(CURVE)
    runs = nudged_runs([CURVE, CURVE])
    for record in (mine, base, *runs):
        record["numerics"]["grad_norm"] = [1.0] * 100
    assert agree(mine, base, runs).verdict == "equal"
    mine["numerics"]["grad_norm"] = [1.0] * 50 + [1.01] * 50
    found = agree(mine, base, runs)
    assert (found.verdict, found.gate) == ("diverged", "nudged")
    assert found.reason is not None and found.reason.startswith("the gradient norm of step 50 is")
    assert agree(mine, base, []).verdict == "equal"  # tolerances know of losses alone


def test_one_nudged_run_shows_no_spread() -> None:
    late = made(off_by(5e-3, 50))
    assert agree(late, made(CURVE), RUNS[:1]).gate == "tolerance"
    assert agree(late, made(CURVE), RUNS[:1]).verdict == "within"
    assert agree(late, made(CURVE), RUNS).verdict == "diverged"


def test_the_coarser_dtype_chooses_the_runs() -> None:
    low = nudged_runs([off_by(1e-2), off_by(-1e-2)], "bfloat16")
    off = off_by(3e-2)
    assert agree(made(off, "bfloat16"), made(CURVE), RUNS + low).verdict == "within"
    assert agree(made(off, "float32"), made(CURVE), RUNS + low).verdict == "diverged"
    assert agree(made(off, "float16"), made(CURVE), RUNS + low).gate == "tolerance"


def test_parameters_in_a_low_dtype_are_rounded_in_every_step() -> None:
    low = nudged_runs([CURVE, CURVE], "bfloat16")
    pure = made(off_by(1e-2, 50), "bfloat16")
    pure["effective"]["precision"]["parameters"] = "bfloat16"
    assert agree(pure, made(CURVE), low).gate == "tolerance"
    base = made(CURVE, "bfloat16")
    base["effective"]["precision"]["parameters"] = "bfloat16"
    assert agree(pure, base, low).gate == "nudged"


@pytest.mark.parametrize(
    ("compute", "asked", "float32_matmul", "dtype"),
    [
        ("float32", "fp32", None, "float32"),
        ("float64", "own", None, "float32"),
        ("float32", "fp32", "ieee", "float32"),
        ("float32", "own", "tf32", "tfloat32"),
        ("float32, float16", "fp16", None, "float16"),
        ("bfloat16, float32", "bf16", None, "bfloat16"),
        (None, "bf16_pure", None, "bfloat16"),
        (None, None, None, "float32"),
    ],
)
def test_in_what_it_computes(
    compute: str | None, asked: str | None, float32_matmul: str | None, dtype: str
) -> None:
    assert computes(made(CURVE, compute, asked, float32_matmul)) == dtype


def test_gradients_that_travel_in_a_low_dtype_count_as_well() -> None:
    hooked = made(off_by(1e-3, 5))
    hooked["effective"]["precision"]["reduction"] = "float16"
    assert computes(hooked) == "float16"
    assert agree(hooked, made(CURVE), []).verdict == "within"
    assert agree(made(off_by(1e-3, 5)), made(CURVE), []).verdict == "diverged"


def test_other_samples_in_as_many_steps() -> None:
    mine, base = made(CURVE), made(CURVE)
    for record, digest in ((mine, "a"), (base, "b")):
        record["numerics"] |= {"samples_digest": digest, "first_step": 0}
        record["throughput"] |= {"steps_measured": 90, "steps_excluded": {"warmup": 10}}
    found = agree(mine, base, [])
    assert (found.verdict, found.gate) == ("diverged", "samples")
    assert found.reason == ("a is the digest of the samples in 100 steps, b in the baseline's")
    mine["throughput"]["steps_measured"] = 91  # more extra steps
    assert agree(mine, base, []).verdict == "equal"
    mine["throughput"]["steps_measured"], mine["numerics"]["samples_digest"] = 90, None
    assert agree(mine, base, []).verdict == "equal"


def sketched(sketch: list[float] | None, digest: str = "d") -> dict[str, Any]:
    record = made(CURVE)
    record["numerics"]["init_digest"] = digest
    record["numerics"]["gradient"]["sketch"] = sketch
    record["effective"]["precision"]["parameters"] = "float32"
    return record


def test_another_gradient_from_the_same_start() -> None:
    base = sketched([3.0, 4.0])
    found = agree(sketched([3.0, 4.0 + 1e-5]), base, [])
    assert (found.verdict, found.gate) == ("diverged", "reference")
    assert found.reason is not None and "2.0e-06 off the baseline's" in found.reason
    assert agree(sketched([3.0, 4.0 + 1e-6]), base, []).verdict == "equal"
    assert agree(sketched(None), base, []).verdict == "equal"


def test_another_start() -> None:
    base = sketched(None)
    found = agree(sketched(None, "e"), base, [])
    assert (found.verdict, found.gate) == ("diverged", "start")
    rounded = sketched(None, "e")
    rounded["effective"]["precision"]["parameters"] = "bfloat16"
    assert agree(rounded, base, []).verdict == "equal"


def test_coupled_samples_are_compared_at_equal_sizes_only() -> None:
    mine, base = made(off_by(0.2)), made(CURVE)
    for record in (mine, base):
        record["numerics"]["coupled_by"] = ["BatchNorm2d"]
        record["throughput"]["micro_batch_size"] = 8
    assert agree(mine, base, []).verdict == "diverged"
    mine["throughput"]["micro_batch_size"] = 4
    found = agree(mine, base, [])
    assert (found.verdict, found.deviation) == (None, pytest.approx(0.2))
    assert found.reason == ("BatchNorm2d: losses at different micro-batches can't be compared")


def test_compilers_draw_other_random_numbers() -> None:
    mine, base = made(off_by(0.2)), made(CURVE)
    mine["requested"]["compile"], base["requested"]["compile"] = "inductor", "off"
    assert agree(mine, base, []).verdict == "diverged"
    mine["numerics"]["coupled_by"] = ["Dropout"]
    assert agree(mine, base, []).verdict is None
