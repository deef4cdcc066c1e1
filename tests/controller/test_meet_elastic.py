"""Nodes that meet with launch.nnodes=LO:HI: as many as come, and without those that are lost."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.controller.agreement import introduction
from paceline.controller.meet import Lead, open_meeting
from paceline.types import ConfigError
from tests.controller.test_meet import (
    ENDED,
    agree,
    all_agree,
    base,
    meet,
    nodes,
    pool,
    problems,
    until,
)

__all__ = ["base", "meet", "nodes", "pool"]


def test_all_come(nodes: Any, pool: ThreadPoolExecutor) -> None:
    jobs = nodes(3, nnodes="1:3", meet_timeout_s=300)
    for one in all_agree(pool, jobs):
        assert one.result(timeout=30) is None


def test_enough_come(meet: Any) -> None:
    lead, third = meet(3, who=[0, 2], nnodes="2:3", meet_timeout_s=1)
    assert lead.nodes == third.nodes == [0, 2]
    assert (lead.group_rank, third.group_rank, third.node_rank) == (0, 1, 2)


def test_too_few_come(nodes: Any, pool: ThreadPoolExecutor) -> None:
    first = nodes(3, nnodes="2:3", meet_timeout_s=1)[0]
    missing = problems(pool.submit(agree, first))
    assert [p[: p.index(" did")] for p in missing] == [
        "launch.nnodes=2:3: node 1",
        "launch.nnodes=2:3: node 2",
    ]


def test_those_that_slurm_gave_are_enough(meet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    lead, _ = meet(2, nnodes="1:4", meet_timeout_s=300)
    assert lead.nodes == [0, 1]


def test_one_that_goes_may_come_again(nodes: Any, pool: ThreadPoolExecutor) -> None:
    first, second, third = nodes(3, nnodes="1:3", meet_timeout_s=300)
    lead = pool.submit(agree, first)
    with open_meeting(second, adopted=False) as gone:
        gone.lines[0].send("hello", **introduction(second, 1))
        time.sleep(0.3)
        gone.lines[0].close()  # as the kernel does when a process is killed
    for one in [lead, *(pool.submit(agree, job) for job in (second, third))]:
        assert one.result(timeout=30) is None


def test_one_that_refuses_ends_all(nodes: Any, pool: ThreadPoolExecutor) -> None:
    first, second = nodes(2, nnodes="1:2")

    def refuse() -> None:
        with open_meeting(second, adopted=False):
            raise ConfigError(["this directory is in use"])

    lead, refusing = pool.submit(agree, first), pool.submit(refuse)
    assert problems(refusing) == ["this directory is in use"]
    assert problems(lead) == ["node 1: this directory is in use"]


def test_one_that_comes_too_late(nodes: Any, pool: ThreadPoolExecutor) -> None:
    first, second = nodes(2, nnodes="1:2", meet_timeout_s=1)
    with open_meeting(first, adopted=False) as lead:
        assert isinstance(lead, Lead)
        with open_meeting(second, adopted=False) as late:  # it has come, and said nothing yet
            lead.agree(introduction(first, 0), None)
            assert lead.nodes == [0]
            until(lambda: late.lines[0].gone)
            (only,) = late.lines[0].problems
            assert "the job has begun without this node" in only
    (only,) = problems(pool.submit(agree, second))
    assert "or began without this node" in only


def test_they_go_on_without_one(meet: Any, pool: ThreadPoolExecutor) -> None:
    lead, second, third = meet(3, nnodes="2:3")
    assert third.group_rank == 2
    second.lines[0].close()
    until(lambda: lead.trouble(0))
    until(lambda: third.trouble(0))
    answer = pool.submit(third.report, 0, ENDED)
    told, lost = lead.reports(0)
    assert list(told) == [2] and list(lost) == [1]
    lead.let_go(lost, 0)
    lead.decide(0, None)
    assert answer.result(timeout=20) is None
    assert lead.nodes == third.nodes == [0, 2] and third.group_rank == 1
    assert not lead.trouble(1) and not third.trouble(1)
    lead.begin(1)
    third.begin(1)
    assert third.port == lead.port


def test_one_that_only_seemed_lost_hears_it(meet: Any, pool: ThreadPoolExecutor) -> None:
    lead, other = meet(2, nnodes="1:2", timeout_s=1, stop_grace_s=0.1)
    told, lost = lead.reports(0)
    assert told == {} and list(lost) == [1]
    lead.let_go(lost, 0)
    lead.decide(0, None)
    end = pool.submit(other.report, 0, ENDED).result(timeout=20)
    assert end["state"] == "failed"
    assert end["message"].startswith("node 0 went on without this node: it did not end within")
