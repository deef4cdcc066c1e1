"""One seed, one training: whatever the strategy, the accumulation and the workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import Command, Done

pytestmark = pytest.mark.distributed

SMALL_GPT = [
    "model.width=32",
    "model.layers=2",
    "model.context_length=32",
    "data.sequence_length=32",
    "data.global_batch_size=8",
    "data.max_bytes=400000",
    "measure=quick",
    "measure.window_s=0",
    "run.steps=30",
    "run.eval_batches=2",
]
RTOL = 1e-5


@pytest.fixture(scope="module")
def swept(module_command: Command) -> Done:
    done = module_command(
        "-m",
        *SMALL_GPT,
        "strategy=single,ddp",
        "run.accumulation_steps=1,4",
        "data.loader.num_workers=0,2",
    )
    assert done.code == 0, done.err
    return done


def records(done: Done) -> list[dict[str, Any]]:
    found = done.jobs("outputs/sweeps/*")
    assert len(found) == 8
    return found


def test_losses_agree(swept: Done) -> None:
    curves = np.array([r["numerics"]["loss"] for r in records(swept)])
    assert curves.shape == (8, 30)
    assert np.abs(curves / curves[0] - 1).max() <= RTOL
    assert curves[0, -1] < curves[0, 0]


def test_held_out_losses_agree(swept: Done) -> None:
    losses = np.array([r["numerics"]["eval_loss"] for r in records(swept)])
    assert np.abs(losses / losses[0] - 1).max() <= RTOL


def test_gradient_norms_agree(swept: Done) -> None:
    curves = np.array([r["numerics"]["grad_norm"] for r in records(swept)])
    assert np.abs(curves / curves[0] - 1).max() <= 1e-4


@pytest.mark.parametrize("key", ["samples_digest", "init_digest"])
def test_same_start_and_same_samples(swept: Done, key: str) -> None:
    assert len({r["numerics"][key] for r in records(swept)}) == 1


def test_every_sample_is_counted(swept: Done) -> None:
    assert {r["throughput"]["samples_used"] for r in records(swept)} == {30 * 8}
    assert {r["throughput"]["units_per_step"] for r in records(swept)} == {8 * 32}


def test_gradients_are_equal_over_ranks(swept: Done) -> None:
    seen = {(r["requested"]["strategy"], r["numerics"]["grads_equal"]) for r in records(swept)}
    assert seen == {("single", None), ("ddp", True)}


def test_it_is_one_work_and_eight_cells(swept: Done) -> None:
    assert len({r["job"]["work_hash"] for r in records(swept)}) == 1
    assert len({r["job"]["config_hash"] for r in records(swept)}) == 8


def test_what_ran_was_looked_at(swept: Done) -> None:
    for record in records(swept):
        asked, ran = record["requested"], record["effective"]
        assert ran["world_size"] == asked["world_size"]
        assert ran["threads_per_rank"] == asked["threads_per_rank"]
        assert ran["data"]["workers"] == asked["data"]["num_workers"]
        wrapped = ran["strategy"].startswith("DistributedDataParallel(")
        assert wrapped == (asked["strategy"] == "ddp")


def test_both_batch_sizes_are_named(swept: Done) -> None:
    for record in records(swept):
        rate, overrides = record["throughput"], record["job"]["overrides"]
        accumulation = 4 if "run.accumulation_steps=4" in overrides else 1
        parts = record["requested"]["world_size"] * accumulation
        assert rate["global_batch_size"] == 8
        assert rate["micro_batch_size"] * parts == 8
        assert rate["per_device_units_per_s"] * record["requested"]["world_size"] == pytest.approx(
            rate["steady_units_per_s"]
        )


def test_the_table_has_the_swept_keys_and_says_that_it_cannot_tell(swept: Done) -> None:
    table = swept.table()
    assert set(table["swept"]) == {"strategy", "run.accumulation_steps", "data.loader.num_workers"}
    assert [row["verdict"] for row in table["rows"]] == ["baseline"] + ["cant_tell"] * 7
    assert all(row["validity"] == "valid" for row in table["rows"])


@pytest.mark.slow
def test_masked_tokens_weigh_right(command: Command) -> None:
    # every space is masked, so that micro-batches and ranks have different weights
    done = command(
        "-m",
        *SMALL_GPT,
        "loss.ignore_index=32",
        "strategy=single,ddp",
        "run.accumulation_steps=1,4",
    )
    assert done.code == 0, done.err
    found = done.jobs("outputs/sweeps/*")
    losses = np.array([r["numerics"]["loss"] for r in found])
    norms = np.array([r["numerics"]["grad_norm"] for r in found])
    assert losses.shape == (4, 30)
    assert np.abs(losses / losses[0] - 1).max() <= RTOL
    assert np.abs(norms / norms[0] - 1).max() <= 1e-4
