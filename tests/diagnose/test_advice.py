"""What is advised against each bound, and what it says that this gains."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from paceline.diagnose.bound import diagnosis
from tests.diagnose.records import CHOICES, CONFIG, record, run


def advised(made: dict[str, Any], **choices: str) -> dict[str, dict[str, Any]]:
    given = diagnosis(made, CONFIG, CHOICES | choices)["advice"]
    return {one["override"]: one for one in given}


def loading(load_ms: float, cpu_ms: float, ready_ms: float = 2.0) -> dict[str, Any]:
    """No workers: a step is the loading and then the rest."""
    made = record(data_wait=load_ms, forward=ready_ms)
    alone = {"name": "loader_alone", "step_s": load_ms / 1e3, "cpu_s": cpu_ms / 1e3}
    made["counter_runs"] = [
        run("cached_batch", load_ms + ready_ms, ready_ms),
        alone | {"units_per_s": 1.0},
    ]
    return made


class TestWorkers:
    @pytest.mark.parametrize(
        ("load_ms", "cpu_ms", "workers", "gain"),
        [
            (8, 0, 5, 10 / 2),  # waiting: as many as hide it behind 2 ms, with some slack
            (40, 0, 8, 42 / 5),  # no more than 8: 40 / 8 ms a batch
            (8, 8, 4, 10 / 2.5),  # computing: 8 ms of loading and 2 of the step on 4 cores
        ],
    )
    def test_as_many_as_pay(self, load_ms: float, cpu_ms: float, workers: int, gain: float) -> None:
        one = advised(loading(load_ms, cpu_ms))[f"data.loader.num_workers={workers}"]
        assert one["predicted_gain"] == pytest.approx(gain)
        low, high = one["predicted_bounds"]
        assert low < gain < high
        assert one["same_work"]

    def test_a_batch_must_be_handed_over(self) -> None:
        made = loading(8, 0)
        made["counter_runs"][1] |= {"handover_s": 0.002, "handover_cpu_s": 0.003}
        one = advised(made)["data.loader.num_workers=3"]
        assert one["predicted_gain"] == pytest.approx(10 / 4)

    def test_none_where_as_many_are_there(self) -> None:
        made = loading(8, 0)
        made["effective"]["data"]["workers"] = 5
        made["counter_runs"][1]["step_s"] = 0.0016  # 8 ms over 5
        assert not any("num_workers" in override for override in advised(made))

    def test_without_counter_runs_nothing_is_predicted(self) -> None:
        given = advised(record(data_wait=8, forward=2), diagnose="ledger")
        one = given["data.loader.num_workers=auto"]
        assert one["predicted_gain"] is None
        assert one["predicted_bounds"] == [1.0, pytest.approx(5)]
        assert "diagnose=intervene" in one["basis"]


def test_a_tried_optimizer_says_its_own_gain() -> None:
    made = record(optimizer=6, forward=4)
    made["counter_runs"] = [run("fused_optimizer", 10, 5)]
    assert advised(made)["optimizer.fused=true"]["predicted_gain"] == pytest.approx(2)
    made["counter_runs"] = [run("fused_optimizer", 10, 9.9)]
    assert "optimizer.fused=true" not in advised(made)  # not worth a word


def test_what_recurs_dilutes_a_gain() -> None:
    made = record(optimizer=6, forward=4, checkpoint=10)
    made["counter_runs"] = [run("fused_optimizer", 10, 5)]
    assert advised(made)["optimizer.fused=true"]["predicted_gain"] == pytest.approx(20 / 15)


def test_twice_the_batch_is_another_training() -> None:
    made = record(forward=9, optimizer=1)
    made["counter_runs"] = [run("double_batch", 10, 11, work=2)]
    one = advised(made)["data.global_batch_size=16"]
    assert one["predicted_gain"] == pytest.approx(20 / 11)
    assert not one["same_work"]


def test_gradients_of_half_the_size() -> None:
    made = record(ranks=2, forward=4, comm=6)
    one = advised(made, strategy="ddp")["comm_hook=fp16"]
    assert one["predicted_gain"] == pytest.approx(10 / 7)
    assert one["predicted_bounds"] == [1.0, pytest.approx(10 / 4)]
    assert "comm_hook=fp16" not in advised(made, strategy="ddp", comm_hook="fp16")


def test_shards_that_need_not_be() -> None:
    made = record(ranks=2, forward=5, backward=5)
    made["memory"]["estimate"] = {"ddp_gib": 1.0, "available_gib": 16.0}
    one = advised(made, strategy="fsdp")["strategy=ddp"]
    assert "1 of 16 GiB" in one["why"]
    assert one["predicted_gain"] is None
    made["memory"]["estimate"]["ddp_gib"] = 15.0
    assert "strategy=ddp" not in advised(made, strategy="fsdp")


def test_fewer_saves() -> None:
    made = record(forward=10, checkpoint=10)
    made["checkpoint"]["economics"] = {"recommended_every_steps": 40, "mtbf_s": 86400.0}
    one = advised(made)["checkpoint.every_steps=40"]
    assert one["predicted_gain"] == pytest.approx(20 / 12.5)


def test_shapes_that_change() -> None:
    one = advised(record(forward=2, recompile=8), compile="inductor")["compile.dynamic=true"]
    assert one["predicted_gain"] == pytest.approx(5)


def test_the_check_is_a_sweep_of_the_job_and_the_advice() -> None:
    made = record(optimizer=6, forward=4)
    made["counter_runs"] = [run("fused_optimizer", 10, 5)]
    words = shlex.split(advised(made)["optimizer.fused=true"]["check"])
    assert words == [
        "paceline", "-m", "repeat=range(3)", "run.steps=9", "diagnose=ledger",
        "optimizer.fused=null,true",
    ]  # fmt: skip


def test_the_largest_share_comes_first() -> None:
    made = record(optimizer=3, forward=2, checkpoint=5)
    made["checkpoint"]["economics"] = {"recommended_every_steps": 40, "mtbf_s": 86400.0}
    made["counter_runs"] = [run("fused_optimizer", 5, 3)]
    first, *rest = advised(made)
    assert first == "checkpoint.every_steps=40"
    assert "optimizer.fused=true" in rest
