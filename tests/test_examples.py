"""The examples run as their first lines say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Command

OWN = Path(__file__).parents[1] / "examples" / "own"


@pytest.fixture
def own(command: Command) -> Command:
    shutil.copytree(OWN, command.cwd, dirs_exist_ok=True, ignore=shutil.ignore_patterns("outputs"))
    return command


@pytest.mark.parametrize("data", ["lines", pytest.param("lines_loader", marks=pytest.mark.slow)])
def test_your_own_model_data_and_loss(own: Command, data: str) -> None:
    done = own(
        "--config-dir",
        "conf",
        "model=gru",
        f"data={data}",
        "loss=focal",
        "run.steps=30",
        "measure=quick",
        "measure.window_s=0",
        "launch.threads_per_rank=1",
    )
    assert done.code == 0, done.err
    record = done.job()
    assert record["validity"]["verdict"] == "valid"
    assert record["effective"]["strategy"] == "Gru"
    assert record["throughput"]["unit"] == ("lines" if data == "lines" else "samples")
    assert record["throughput"]["units_used"] == 30 * 64
    assert (record["numerics"]["samples_digest"] is None) == (data == "lines_loader")
    assert record["numerics"]["loss"][-1] < record["numerics"]["loss"][0]


def test_its_yaml_is_checked_like_ours(own: Command) -> None:
    done = own("--config-dir", "conf", "model=gru", "data=lines", "loss=focal", "loss.gamma=much")
    assert done.code == 2
    assert "loss.gamma=much" in done.err
    assert not (own.cwd / "outputs").exists()
