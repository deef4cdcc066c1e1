"""What only a CUDA device can show. Not yet measured: it skips where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.conftest import Command

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_the_default_job_on_a_device(command: Command) -> None:
    done = command("run.steps=60", "measure=quick", timeout_s=300)
    assert done.code == 0, done.err
    record = done.job()
    assert record["effective"]["device"] == "cuda"
    assert record["memory"]["peak_device_gib"] > 0
    ledger = record["ledger"]
    steady = sum(ledger["steady_phases_s"].values())
    assert steady == pytest.approx(ledger["steady_wall_s"], rel=1e-6)


def test_events_agree_with_the_host_over_a_stretch() -> None:
    import time

    from paceline.rank.ledger import FORWARD, STEADY, Ledger

    device = torch.device("cuda", 0)
    ledger, a = Ledger(device), torch.rand(2048, 2048, device=device)
    torch.cuda.synchronize()
    start = time.perf_counter()
    ledger.begin()
    for step in range(200):
        a @ a
        ledger.mark(FORWARD)
        ledger.end_step(step, STEADY)
    torch.cuda.synchronize()
    host_s = time.perf_counter() - start
    assert ledger.steps().step_s.sum() == pytest.approx(host_s, rel=0.05)


def test_the_loop_never_waits_for_the_device(tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from paceline.__main__ import config_dir
    from paceline.controller.plan import plain
    from paceline.rank.build import build
    from paceline.rank.train import train
    from paceline.rank.world import StopFlag
    from paceline.types import World

    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        config = plain(compose("config", ["run.steps=100"], return_hydra_config=True))
    (tmp_path / "log").mkdir()
    world = World(0, 0, 0, 1, torch.device("cuda", 0))
    parts, _ = build(config, tmp_path, world, StopFlag(world))
    parts.batches = iter(parts.state.data.batches(0))
    train(parts, 0, 20)
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert train(parts, 20, 100) == 100
    finally:
        torch.cuda.set_sync_debug_mode("default")
