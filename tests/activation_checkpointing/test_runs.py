"""activation_checkpointing by the command: recorded, refused, and under inductor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from paceline.controller.plan import CannotRun
from tests.conftest import TINY, Command, Done
from tests.controller.test_plan import planned_job

EMPTY = """
from torch import nn


class Empty(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x):
        return self.head(x)

    def blocks(self):
        return []
"""


class Headed(nn.Module):
    def __init__(self, inputs: int, hidden: list[int], outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs)


def headed(inputs: int, hidden: list[int], outputs: int) -> nn.Module:
    return Headed(inputs, hidden, outputs)


@pytest.fixture(scope="module")
def swept(module_command: Command) -> Done:
    return module_command("-m", *TINY, "activation_checkpointing=off,blocks,selective")


def by_option(done: Done) -> dict[str, dict[str, Any]]:
    found = {}
    for record in done.jobs("outputs/sweeps/*"):
        found[record["requested"]["activation_checkpointing"]] = record
    return found


def test_requested_and_effective(swept: Done) -> None:
    assert swept.code == 0, swept.err
    records = by_option(swept)
    assert {k: r["effective"]["activation_checkpointing"] for k, r in records.items()} == {
        "off": "off",
        "blocks": "2 blocks",
        "selective": "2 blocks, selective",
    }
    assert {r["validity"]["verdict"] for r in records.values()} == {"valid"}


def test_it_is_the_same_work_with_the_same_losses(swept: Done) -> None:
    records = by_option(swept)
    assert len({r["job"]["work_hash"] for r in records.values()}) == 1
    assert len({r["job"]["config_hash"] for r in records.values()}) == 3
    for option in ("blocks", "selective"):
        assert records[option]["numerics"]["loss"] == records["off"]["numerics"]["loss"]


def test_the_estimate_knows(swept: Done) -> None:
    kept = {k: r["memory"]["estimate"]["activations_gib"] for k, r in by_option(swept).items()}
    assert 0 < kept["blocks"] < kept["selective"] <= kept["off"]


@pytest.mark.slow
class TestWithoutBlocks:
    def test_it_is_refused_before_the_start(self, tmp_path: Path) -> None:
        words = [f"model._target_={__name__}.Headed", "activation_checkpointing=blocks"]
        with pytest.raises(CannotRun) as caught:
            planned_job(tmp_path, *TINY, *words)
        assert caught.value.problems == [
            "activation_checkpointing=blocks: Headed doesn't define blocks() -> list of modules; "
            "define it, or use activation_checkpointing=off"
        ]
        # of a function nobody knows what it makes: the ranks refuse that
        words[0] = f"model._target_={__name__}.headed"
        assert planned_job(tmp_path, *TINY, *words).requested["activation_checkpointing"]

    def test_none_in_the_list_is_no_effect(self, command: Command) -> None:
        (command.cwd / "mine.py").write_text(EMPTY)
        done = command(*TINY, "model._target_=mine.Empty", "activation_checkpointing=blocks")
        record = done.job()
        assert record["effective"]["activation_checkpointing"] == "0 blocks"
        assert record["validity"]["verdict"] == "ineffective"
        assert "the model's blocks() has no block" in record["validity"]["reasons"][0]


@pytest.mark.slow
@pytest.mark.distributed
def test_under_inductor(command: Command) -> None:
    done = command(
        "-m",
        *TINY,
        "compile=inductor",
        "strategy=single,fsdp",
        "compile.scope=model,blocks",
        "activation_checkpointing=off,blocks,selective",
        timeout_s=500,
    )
    assert done.code == 0, done.err
    records = done.jobs("outputs/sweeps/*")
    assert len(records) == 12
    assert {r["validity"]["verdict"] for r in records} == {"valid"}
    assert {r["compile"]["frames_fallen_back"] for r in records} == {0}
    curves = np.array([r["numerics"]["loss"] for r in records])
    assert np.abs(curves / curves[0] - 1).max() < 1e-4
