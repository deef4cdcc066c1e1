"""fsdp and hsdp as whole jobs: the same training, the right norms, and what is written of them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conftest import TINY, Command, Done
from tests.distributed.test_same_training import RTOL, SMALL_GPT

pytestmark = pytest.mark.distributed

SHARDED = ("fsdp", "hsdp")


@pytest.fixture(scope="module")
def swept(module_command: Command) -> Done:
    done = module_command(
        "-m",
        *SMALL_GPT,
        "launch.threads_per_rank=1",
        "strategy=single,fsdp,hsdp",
        "run.accumulation_steps=1,4",
        "loss.ignore_index=32",  # every space: micro-batches and ranks have different weights
    )
    assert done.code == 0, done.err
    return done


def records(done: Done) -> list[dict[str, Any]]:
    found = done.jobs("outputs/sweeps/*")
    assert len(found) == 6
    return found


def test_losses_held_out_losses_and_global_norms_agree(swept: Done) -> None:
    losses = np.array([r["numerics"]["loss"] for r in records(swept)])
    norms = np.array([r["numerics"]["grad_norm"] for r in records(swept)])
    held_out = np.array([r["numerics"]["eval_loss"] for r in records(swept)])
    assert losses.shape == norms.shape == (6, 30)
    assert np.abs(losses / losses[0] - 1).max() <= RTOL
    assert np.abs(norms / norms[0] - 1).max() <= 1e-4
    assert np.abs(held_out / held_out[0] - 1).max() <= RTOL


@pytest.mark.parametrize("key", ["samples_digest", "init_digest"])
def test_same_start_and_same_samples(swept: Done, key: str) -> None:
    assert len({r["numerics"][key] for r in records(swept)}) == 1


def test_gradients_are_compared_where_two_ranks_hold_the_same(swept: Done) -> None:
    seen = {(r["requested"]["strategy"], r["numerics"]["grads_equal"]) for r in records(swept)}
    assert seen == {("single", None), ("fsdp", None), ("hsdp", True)}


def test_what_was_wrapped_is_written_in_its_order(swept: Done) -> None:
    ran = {r["requested"]["strategy"]: r["effective"]["strategy"] for r in records(swept)}
    assert ran == {
        "single": "GptModel",
        "fsdp": "fully_shard(2 x Block, GptModel)",
        "hsdp": "fully_shard(2 x Block, GptModel)",
    }


def test_all_cells_are_valid(swept: Done) -> None:
    assert {row["validity"] for row in swept.table()["rows"]} == {"valid"}


def test_a_rank_with_fewer_held_out_batches_takes_part(command: Command) -> None:
    # 179 held-out images in batches of 32: the ranks have 90 and 89, in batches of 16
    done = command(
        *("-m", *TINY, "data.global_batch_size=30", "run.eval_batches=10"),
        *("strategy=single,fsdp", "run.steps=6"),
    )
    assert done.code == 0, done.err
    single, fsdp = (r["numerics"]["eval_loss"] for r in done.jobs("outputs/sweeps/*"))
    assert fsdp == pytest.approx(single, rel=1e-5)


@pytest.mark.slow
def test_compiled_units_leave_no_graph_break(command: Command) -> None:
    done = command(*SMALL_GPT, "strategy=fsdp", "compile=inductor", "compile.compare_eager=false")
    assert done.code == 0, done.err
    record = done.job()
    assert record["effective"]["strategy"] == "fully_shard(2 x compiled Block, GptModel)"
    assert record["compile"]["frames_compiled"] >= 1
    assert record["compile"]["frames_fallen_back"] == 0
    assert record["compile"]["graph_breaks"] == []


@pytest.mark.slow
def test_a_stopped_job_of_shards_goes_on_bit_for_bit(
    command: Command, until: Callable[..., None]
) -> None:
    words = [*TINY, "strategy=fsdp", "checkpoint=sync", "run.steps=200"]
    words += ["model.hidden=[64,64]", "launch.threads_per_rank=1"]
    unbroken = command(*words, "hydra.run.dir=unbroken").jobs(".")[0]
    first = command.start(*words, "checkpoint.every_steps=5", "hydra.run.dir=broken")
    saved = command.cwd / "broken" / "checkpoint"
    until(lambda: [p for p in saved.glob("step_*") if p.name >= "step_00000030"])  # steady by then
    first.send_signal(signal.SIGTERM)
    assert command.wait(first).code == 75
    again = command(*words, "checkpoint.every_steps=5", "hydra.run.dir=broken")
    assert again.code == 0, again.err
    (broken,) = [r for r in again.jobs(".") if r["job"]["dir"].endswith("/broken")]
    assert 0 < broken["checkpoint"]["resumed_from"] < 200
    assert broken["numerics"]["loss"] == unbroken["numerics"]["loss"]
    assert broken["numerics"]["eval_loss"] == unbroken["numerics"]["eval_loss"]
    # both rates are known, that of the attempt which was stopped and that after it
    (before,) = broken["checkpoint"]["steady_before"]
    assert before > 0
    assert f"steady before, {broken['throughput']['steady_units_per_s']:,.0f} now" in again.out


@pytest.mark.slow
def test_blocks_are_asked_for_where_there_are_none(command: Command) -> None:
    (command.cwd / "mine.py").write_text(
        "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n"
        "        super().__init__(64, 10)\n    def forward(self, x):\n"
        "        return super().forward(x.flatten(1))\n"
    )
    conf = command.cwd / "conf" / "model"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text("_target_: mine.Net\n")
    mine = ["--config-dir", "conf", *[w for w in TINY if w != "model=mlp"], "model=mine"]
    refused = command(*mine, "strategy=fsdp")
    assert refused.code == 1
    assert "strategy.wrap=size" in refused.out
    done = command(*mine, "strategy=fsdp", "strategy.wrap=size")
    assert done.code == 0, done.err
