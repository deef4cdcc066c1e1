"""Saved by so many ranks, read by others: ddp, fsdp and hsdp, all ways of saving."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from paceline.types import CheckpointError, TrainState, World
from tests import ranks
from tests.checkpoint.training import MODES, opened, tensors, train, training

pytestmark = pytest.mark.distributed


def made(world: World, seed: int, sharding: str) -> TrainState:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))  # 5 rows: uneven shards
    if sharding == "replicas":
        return training(seed, model)
    sizes = (2, 2) if sharding == "hsdp" else (world.world_size,)
    names = ("replicate", "shard")[-len(sizes) :]
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)

    def shard(model: nn.Module) -> None:
        fully_shard(model, mesh=mesh)

    return training(seed, model, shard)


def step(state: TrainState, steps: int) -> None:
    """The same on every rank: gradients are averaged, and all have the same samples."""
    torch.manual_seed(state.step)
    train(state, steps)


def save(world: World, directory: Path, mode: str, sharding: str) -> dict[str, torch.Tensor]:
    state = made(world, 0, sharding)
    step(state, 3)
    saver = opened(mode, directory, world)
    saver.save(state, 3, now=False)
    saver.finish()
    return tensors(state)


def load(
    world: World, directory: Path, mode: str, sharding: str
) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[float]]:
    state = made(world, 1, sharding)
    saver = opened(mode, directory, world)
    assert saver.load(state) == 3
    found = tensors(state)
    drawn = [float(torch.rand(1)), random.random(), float(np.random.rand())]
    return found, saver.report(), drawn


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(MODES))
def test_shards_of_two_ranks_are_read_by_three_by_one_and_by_replicas(
    tmp_path: Path, mode: str
) -> None:
    saved, _ = ranks.run(save, 2, tmp_path, mode, "fsdp")
    for world_size, sharding in ((3, "fsdp"), (1, "replicas"), (2, "replicas"), (4, "hsdp")):
        for found, report, _ in ranks.run(load, world_size, tmp_path, "dcp", sharding):
            assert equal(found, saved), (world_size, sharding)
            same = world_size == 2
            assert report["restored"]["rederived"] == ([] if same else ["rng"])
            assert report["resharded"] == (
                None if same else {"from": {"world_size": 2}, "to": {"world_size": world_size}}
            )


@pytest.mark.slow
def test_replicas_are_read_by_shards(tmp_path: Path) -> None:
    saved, _ = ranks.run(save, 2, tmp_path, "sync", "replicas")
    for world_size, sharding in ((3, "fsdp"), (4, "hsdp")):
        for found, _, _ in ranks.run(load, world_size, tmp_path, "dcp", sharding):
            assert equal(found, saved), (world_size, sharding)


@pytest.mark.slow
def test_what_ranks_draw_is_theirs_again_or_derived_from_seed_step_and_rank(
    tmp_path: Path,
) -> None:
    ranks.run(save, 2, tmp_path, "dcp", "replicas")
    same = [drawn for _, _, drawn in ranks.run(load, 2, tmp_path, "dcp", "replicas")]
    assert same == [d for _, _, d in ranks.run(load, 2, tmp_path, "dcp", "replicas")]
    other = [drawn for _, _, drawn in ranks.run(load, 3, tmp_path, "dcp", "replicas")]
    assert len({tuple(drawn) for drawn in other}) == 3, "no two ranks draw the same"
    assert other == [d for _, _, d in ranks.run(load, 3, tmp_path, "dcp", "replicas")]


def test_a_source_that_samples_by_itself_is_not_shared_out_anew(tmp_path: Path) -> None:
    ranks.run(save, 2, tmp_path, "dcp", "replicas")
    for said in ranks.run(_own_sampling, 1, tmp_path):
        assert "saved by 2 ranks, this job has 1: the data source does its own sampling" in said


def _own_sampling(world: World, directory: Path) -> str:
    state: Any = made(world, 1, "replicas")
    state.data.sampling = "own"
    with pytest.raises(CheckpointError) as raised:
        opened("dcp", directory, world).load(state)
    return str(raised.value)


def test_ranks_that_see_different_checkpoints_end(tmp_path: Path) -> None:
    ranks.run(save, 2, tmp_path / "rank0", "dcp", "replicas")
    for said in ranks.run(_own_disks, 2, tmp_path):
        assert "different newest checkpoints" in said
        assert "file system that all nodes share" in said


def _own_disks(world: World, directory: Path) -> str:
    saver = opened("dcp", directory / f"rank{world.rank}", world)
    with pytest.raises(CheckpointError) as raised:
        saver.load(made(world, 1, "replicas"))
    dist.barrier()
    return str(raised.value)


def test_a_rank_whose_files_rank_0_does_not_see_ends_the_save(tmp_path: Path) -> None:
    """Two nodes, each with a disk of its own."""
    for said in ranks.run(_written_elsewhere, 2, tmp_path):
        assert "rank 0 doesn't see what others wrote" in said


def _written_elsewhere(world: World, directory: Path) -> str:
    mine = directory / f"rank{world.rank}"
    if world.rank:
        (mine / "checkpoint" / ".staging" / "step_00000003").mkdir(parents=True)
    state = made(world, 0, "replicas")
    step(state, 3)
    saver = opened("dcp", mine, world)
    with pytest.raises(CheckpointError) as raised:
        saver.save(state, 3, now=False)
    dist.barrier()
    return str(raised.value)
