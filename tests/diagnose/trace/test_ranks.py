"""Ranks beside each other: whom the others wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.ranks import groups
from paceline.diagnose.trace.reading import read
from paceline.types import World
from tests.diagnose.trace.synthetic import kernel, launch, step, talk, write
from tests.ranks import run


def job(tmp_path: Path, own_us: list[list[float]], first_step: int = 1) -> list[dict[str, Any]]:
    """Answers of ranks that compute for so long in each step, then end a collective together."""
    answers = []
    longest = [max(column) for column in zip(*own_us, strict=True)]
    for rank, mine in enumerate(own_us):
        events, at, number = [], 0.0, 0
        for i, (own, all_done) in enumerate(zip(mine, longest, strict=True)):
            wall, number = all_done + 100, number + 2
            events.append(step(first_step + i, at, wall))
            events += [launch(at, 1, number - 1), launch(at + 1, 1, number)]
            events.append(kernel("gemm", at + 2, own - 2, number - 1))
            events.append(talk(at + own, wall - own, number))
            at += wall
        facts = {"distributedInfo": {"rank": rank, "world_size": len(own_us)}}
        answers.append(analyse(read(write(tmp_path / f"rank{rank}.json", events, **facts))))
    return answers


def test_a_straggler_is_who_works_longest_and_waits_least(tmp_path: Path) -> None:
    (found,) = groups(job(tmp_path, [[500, 510], [900, 900], [490, 500]]))
    assert (found["straggler"], found["share"]) == (1, pytest.approx(0.4, abs=0.01))
    assert found["steps"] == [1, 2]
    assert [line["wait_us"] for line in found["figures"]] == [495, 100, 505]
    assert found["wait_spread_us"] == 405
    assert "rank 1 works 0.9 ms of a step itself" in found["why"]


def test_equal_ranks_have_none(tmp_path: Path) -> None:
    (found,) = groups(job(tmp_path, [[500, 510], [520, 500]]))
    assert found["straggler"] is None
    assert "no rank works a tenth of a step longer" in found["why"]


def test_a_single_slow_step_makes_none(tmp_path: Path) -> None:
    (found,) = groups(job(tmp_path, [[500, 500, 500], [900, 900, 490]]))
    assert found["straggler"] is None
    assert "not in every step" in found["why"]


def test_steps_that_do_not_line_up_are_not_compared(tmp_path: Path) -> None:
    first = job(tmp_path, [[500], [900]])[0]
    second = job(tmp_path, [[500], [900]], first_step=7)[1]
    (found,) = groups([first, second])
    assert found["straggler"] is None
    assert "no step with known communication in common" in found["why"]


def test_other_jobs_and_single_ranks_are_not_compared(tmp_path: Path) -> None:
    assert groups(job(tmp_path, [[500]])) == []
    (tmp_path / "other").mkdir()
    one, two = (job(tmp_path / place, [[500], [900]])[0] for place in (".", "other"))
    assert groups([one, two]) == []
    three = job(tmp_path, [[500], [500], [900]])[2]
    assert groups([one, three]) == []


def test_ranks_may_have_a_folder_each(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first = job(tmp_path, [[500], [900]])[0]
    second = job(tmp_path / "other", [[500], [900]])[1]
    assert groups([first, second])[0]["straggler"] == 1


def test_two_traces_of_a_rank_are_one_rank(tmp_path: Path) -> None:
    early = job(tmp_path, [[500, 500], [900, 900]])
    later = job(tmp_path, [[500, 500], [900, 900]], first_step=11)
    (found,) = groups([*early, *later])
    assert found["ranks"] == [0, 1]
    assert found["steps"] == [1, 2, 11, 12]
    assert found["straggler"] == 1


def traced(world: World, folder: str) -> None:
    """Rank 1 has sixteen times the batch."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(2048 if world.rank == 1 else 128, 512)
    plan = torch.profiler.schedule(wait=0, warmup=2, active=4, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, record_shapes=True) as recorded:
        for _ in range(6):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorded.step()
    dist.barrier()
    recorded.export_chrome_trace(f"{folder}/r{world.rank}.json.gz")


@pytest.mark.distributed
def test_real_ranks_of_ddp_on_gloo(tmp_path: Path) -> None:
    run(traced, 2, str(tmp_path))
    answers = [analyse(read(path)) for path in sorted(tmp_path.iterdir())]
    assert [found["rank"] for found in answers] == [0, 1]
    (together,) = groups(answers)
    assert together["straggler"] == 1
    fast, slow = together["figures"]
    assert fast["wait_us"] > slow["wait_us"]
    sizes = {line["bytes"] for line in answers[0]["collectives"] if line["bytes"]}
    assert 4 * (512 * 512 + 512) in sizes
    assert {line["group_size"] for line in answers[0]["collectives"]} == {2}
    assert answers[0]["idle_pct"] is None
