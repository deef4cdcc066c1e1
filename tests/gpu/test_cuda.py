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


def test_fp32_multiplies_in_full_and_tf32_with_10_bits() -> None:
    from paceline.precision.full import multiply_float32

    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no TF32 before Ampere")
    # 1 + 2^-12 needs 12 bits of mantissa
    fine = torch.full((256, 256), 1 + 2**-12, device="cuda")
    one = torch.eye(256, device="cuda")
    image, kernel = fine.view(1, 64, 32, 32), torch.eye(64, device="cuda").view(64, 64, 1, 1)
    try:
        for how, exact in (("ieee", True), ("tf32", False)):
            multiply_float32(how)  # type: ignore[arg-type]
            assert torch.equal(fine @ one, fine) is exact
            if exact:  # with TF32 allowed, cuDNN still chooses
                assert torch.equal(torch.nn.functional.conv2d(image, kernel), image)
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize("option", ["fp32", "tf32", "bf16", "fp16", "bf16_pure"])
def test_every_precision_runs_as_asked(command: Command, option: str) -> None:
    done = command("run.steps=40", "measure=quick", f"precision={option}", timeout_s=300)
    assert done.code == 0, done.err
    record = done.job()
    assert record["validity"]["verdict"] == "valid"
    wanted = {"fp32": "ieee", "tf32": "tf32"}
    if option in wanted:
        assert record["effective"]["precision"]["float32_matmul"] == wanted[option]


def test_fp16_waits_for_nothing_with_a_fused_optimizer(tmp_path: Path) -> None:
    from paceline.precision.scaled import Scaled
    from paceline.types import Context, Run, World

    world = World(0, 0, 0, 1, torch.device("cuda", 0))
    context = Context(world, Run(1, 1, 0, None, 0, "cuda"), tmp_path, lambda node: node)
    precision = Scaled("float16", 65536.0, 2.0, 0.5, 2000).open(context)
    model, inputs = torch.nn.Linear(64, 64).cuda(), torch.rand(8, 64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with precision.forward():
            loss = model(inputs).float().square().mean()
        precision.scale(loss).backward()
        precision.step(optimizer, 1.0)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert precision.skipped is not None and not bool(precision.skipped)


def test_a_batch_arrives_whole_by_the_side_stream() -> None:
    from types import SimpleNamespace
    from typing import Any

    from paceline.rank.deliver import deliverer
    from paceline.types import World

    device = torch.device("cuda", 0)
    data: Any = SimpleNamespace(prepare=lambda batch: [batch[0].float() / 255, batch[1]])
    deliver = deliverer(data, World(0, 0, 0, 1, device))
    assert deliver is not None
    busy = torch.rand(4096, 4096, device=device)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(256, (64, 3, 64, 64), generator=generator, dtype=torch.uint8)
        for _ in range(4):
            busy = busy @ busy  # the compute stream is behind while the copy runs
        pixels, labels = deliver([images.pin_memory(), torch.arange(64).pin_memory()])
        assert pixels.device == labels.device == device
        assert torch.equal(pixels.cpu(), images.float() / 255)
        assert torch.equal(labels.cpu(), torch.arange(64))


@pytest.mark.parametrize("option", ["reduce_overhead", "cudagraphs", "max_autotune", "regional"])
def test_compile_options_that_only_a_device_has(command: Command, option: str) -> None:
    done = command(f"compile={option}", "run.steps=40", "measure=quick", timeout_s=600)
    assert done.code == 0, done.out
    record = done.job()
    assert record["validity"]["verdict"] == "valid"
    assert record["compile"]["frames_compiled"] >= 1
    assert record["compile"]["cudagraphs_skipped"] is None
    assert record["compile"]["eager_step_s"] > 0
