"""Rules of DDP and its communication hooks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.controller.test_rules import broken, no_launcher  # noqa: F401

POWERSGD = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 10}
TWO = {"launch.nproc": 2}


@pytest.mark.parametrize("hook", ["fp16", "bf16", "powersgd"])
@pytest.mark.parametrize(
    ("strategy", "way_out"),
    [("single", "use comm_hook=none"), ("fsdp", "use strategy.reduce_dtype=compute"), ("ddp", "")],
)
def test_only_ddp_takes_a_hook(hook: str, strategy: str, way_out: str) -> None:
    said = broken({} if strategy == "single" else TWO, strategy=strategy, comm_hook=hook)
    if strategy == "ddp":
        assert said == []
    else:
        (sentence,) = said
        assert sentence.startswith(f"comm_hook={hook}: strategy={strategy} takes no hook: ")
        assert way_out in sentence


def test_a_strategy_of_ones_own_may_take_one() -> None:
    assert broken(TWO, strategy="mine", comm_hook="fp16") == []


@pytest.mark.parametrize("hook", ["none", "fp16", "bf16", "powersgd"])
def test_what_saves_no_byte_is_refused(hook: str) -> None:
    said = broken(TWO | {"precision": {"dtype": "bfloat16"}}, comm_hook=hook, precision="bf16_pure")
    assert bool(said) == (hook in ("fp16", "bf16"))
    assert (
        broken(TWO | {"precision": {"dtype": "bfloat16"}}, comm_hook=hook, precision="bf16") == []
    )


@pytest.mark.parametrize("hook", ["none", "fp16", "powersgd"])
def test_error_feedback_and_a_loss_scale_do_not_go_together(hook: str) -> None:
    said = broken(TWO | {"precision": {"init_scale": 65536.0}}, comm_hook=hook, precision="fp16")
    assert bool(said) == (hook == "powersgd")
    assert not said or said[0].endswith("use precision=bf16, or comm_hook=fp16")


@pytest.mark.parametrize(("start", "warmup"), [(10, 10), (5, 10), (11, 10)])
def test_what_is_measured_is_compressed(start: int, warmup: int) -> None:
    changes: dict[str, Any] = TWO | {
        "comm_hook": POWERSGD | {"start_powerSGD_iter": start},
        "measure": {"warmup_steps": warmup},
    }
    said = broken(changes, comm_hook="powersgd")
    assert bool(said) == (start > warmup)
    assert not said or "raise measure.warmup_steps to 11" in said[0]


@pytest.mark.parametrize(("static", "accumulation"), [(True, 1), (True, 4), (False, 4)])
def test_a_static_graph_is_learnt_in_one_backward(static: bool, accumulation: int) -> None:
    changes = TWO | {"strategy": {"static_graph": static}, "run.accumulation_steps": accumulation}
    said = broken(changes)
    assert bool(said) == (static and accumulation > 1)
    assert not said or "use strategy.static_graph=false, or run.accumulation_steps=1" in said[0]
