"""Nodes that meet: real sockets on this machine, a thread a node."""

from __future__ import annotations

import copy
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from paceline.__main__ import config_dir
from paceline.controller.agreement import introduction
from paceline.controller.meet import Lead, open_meeting
from paceline.controller.plan import Job, make_job
from paceline.types import ConfigError

ENDED = {"returned": [[1, "completed"]], "exits": [], "signal": 0, "killed": False}
OK = {"state": "completed", "kind": None, "message": None}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Job:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    words = ["model=mlp", "strategy=ddp", "launch.nproc=1"]
    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
        root = compose("config", words, return_hydra_config=True)
    return make_job(root, tmp_path_factory.mktemp("job"))


@pytest.fixture
def nodes(base: Job) -> Callable[..., list[Job]]:
    """The job of each node; they meet at a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def make(number: int, **launch: Any) -> list[Job]:
        made = []
        for rank in range(number):
            config = copy.deepcopy(base.config)
            config["launch"] |= {"nnodes": number, "node_rank": rank, "meet_timeout_s": 20}
            config["launch"] |= {"rdzv_endpoint": f"127.0.0.1:{port}", **launch}
            made.append(replace(base, config=config))
        return made

    return make


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def changed(job: Job, key: str, value: Any) -> Job:
    config = copy.deepcopy(job.config)
    group, _, name = key.partition(".")
    if name:
        config[group][name] = value
    else:
        config[group] = value
    return replace(job, config=config)


def agree(job: Job, finished: dict[str, Any] | None = None, **facts: Any) -> Any:
    """What a node does up to the start of its ranks. `facts`: said in place of true ones."""
    with open_meeting(job, adopted=False) as meeting:
        mine = introduction(job, meeting.node_rank) | facts
        if isinstance(meeting, Lead):
            return meeting.agree(mine, finished)
        return meeting.agree(mine)


def all_agree(pool: ThreadPoolExecutor, jobs: list[Job], **facts: Any) -> list[Future[Any]]:
    return [pool.submit(agree, job, **(facts if n else {})) for n, job in enumerate(jobs)]


def problems(future: Future[Any]) -> list[str]:
    with pytest.raises(ConfigError) as error:
        future.result(timeout=30)
    return error.value.problems


class TestTheyAgree:
    @pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
    def test_in_any_order(self, nodes: Any, pool: ThreadPoolExecutor, order: list[int]) -> None:
        jobs, done = nodes(3), []
        for rank in order:
            done.append(pool.submit(agree, jobs[rank]))
            time.sleep(0.1)
        assert [one.result(timeout=30) for one in done] == [None] * 3

    def test_keys_that_may_differ(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        first, second = nodes(2)
        second = changed(second, "launch.stop_grace_s", 77)
        for one in all_agree(pool, [first, second]):
            assert one.result(timeout=30) is None

    def test_finished_before(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        first, second = nodes(2)
        other = pool.submit(agree, second)
        agree(first, OK)
        assert other.result(timeout=30) == OK

    def test_one_node_meets_nobody(self, base: Job) -> None:
        with open_meeting(base, adopted=False) as meeting:
            assert isinstance(meeting, Lead)
            meeting.agree(introduction(base, 0), None)
            meeting.begin(0)
            assert meeting.port > 0
            assert meeting.reports(0) == ({}, {})
            assert not meeting.trouble(0)


class TestTheyDiffer:
    """All nodes end, each with the same sentences."""

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("run.seed", 7, "run.seed: 0 on node 0, 7 on node 1; type the same command on every"),
            ("launch.nnodes", 3, "launch.nnodes: 2 on node 0, 3 on node 1; type the same"),
            ("repeat", 1, "repeat: 0 on node 0, 1 on node 1; type the same command"),
            ("strict", True, "strict: false on node 0, true on node 1; type the same"),
            ("tag", "b", "tag: null on node 0, b on node 1; type the same command"),
        ],
    )
    def test_in_a_key(
        self, nodes: Any, pool: ThreadPoolExecutor, key: str, value: Any, said: str
    ) -> None:
        first, second = nodes(2)
        found = [problems(one) for one in all_agree(pool, [first, changed(second, key, value)])]
        assert found[0] == found[1]
        (only,) = found[0]
        assert only.startswith(said)

    def test_in_a_key_that_one_does_not_have(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        first, second = nodes(2)
        second = changed(second, "launch.nccl", {"IB_DISABLE": 1})
        found = problems(all_agree(pool, [first, second])[0])
        assert any("launch.nccl.IB_DISABLE: not set on node 0, 1 on node 1" in p for p in found)

    def test_in_many_keys(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        first, second = nodes(2)
        second = changed(second, "optimizer", {f"key{n}": n for n in range(20)})
        found = problems(all_agree(pool, [first, second])[0])
        assert len(found) == 9 and found[-1].endswith("keys more")

    @pytest.mark.parametrize(
        ("fact", "value", "way"),
        [
            ("torch", "2.0.0", "install the same torch on every node"),
            ("world_size", 8, "set launch.nproc"),
            ("device", "cuda", "set run.device"),
        ],
    )
    def test_in_a_fact(
        self, nodes: Any, pool: ThreadPoolExecutor, fact: str, value: Any, way: str
    ) -> None:
        for one in all_agree(pool, nodes(2), **{fact: value}):
            (only,) = problems(one)
            assert only.startswith(f"{fact}: ") and f"{value} on node 1; " in only
            assert only.endswith(way)

    def test_two_are_the_same_node(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        first, second, _ = nodes(3)
        for one in all_agree(pool, [first, second, second]):
            (only,) = problems(one)
            assert only.startswith("launch.node_rank=1: two nodes have it, ")

    def test_two_are_node_0(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        first, _ = nodes(2, meet_timeout_s=1)
        waiting = pool.submit(agree, first)
        time.sleep(0.2)
        (only,) = problems(pool.submit(agree, first))
        assert "can't be had" in only and "launch.node_rank=0 given twice" in only
        problems(waiting)


class TestOneIsMissing:
    def test_another_node(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        first, second, _ = nodes(3, meet_timeout_s=1)
        for one in all_agree(pool, [first, second]):
            (only,) = problems(one)
            assert only.startswith("launch.nnodes=3: node 2 did not come to 127.0.0.1:")
            assert "within launch.meet_timeout_s=1" in only and "launch.node_rank=2" in only

    def test_node_0(self, nodes: Any) -> None:
        _, second = nodes(2, meet_timeout_s=1)
        with pytest.raises(ConfigError) as error:
            agree(second)
        (only,) = error.value.problems
        assert only.startswith("launch.rdzv_endpoint=127.0.0.1:")
        assert "node 0 did not come there within launch.meet_timeout_s=1" in only

    @pytest.mark.parametrize("who", [0, 1])
    def test_one_refuses(self, nodes: Any, pool: ThreadPoolExecutor, who: int) -> None:
        jobs = nodes(2)

        def refuse() -> None:
            with open_meeting(jobs[who], adopted=False):
                raise ConfigError(["this directory is in use"])

        refusing, other = pool.submit(refuse), pool.submit(agree, jobs[1 - who])
        assert problems(refusing) == ["this directory is in use"]
        (only,) = problems(other)
        assert only.endswith("this directory is in use")

    def test_something_else_listens_or_speaks(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        first, second = nodes(2)
        lead = pool.submit(agree, first)
        port = int(first.config["launch"]["rdzv_endpoint"].rpartition(":")[2])
        for noise in (b"GET / HTTP/1.0\r\n\r\n", b"[1]\n", b'{"what": "hello"}\n', b""):
            deadline = time.monotonic() + 10
            while True:
                try:
                    with socket.create_connection(("127.0.0.1", port)) as stranger:
                        stranger.sendall(noise)
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
        assert pool.submit(agree, second).result(timeout=30) is None
        assert lead.result(timeout=30) is None


class Meet:
    """Both sides up to where ranks would run."""

    def __init__(self, jobs: list[Job], pool: ThreadPoolExecutor) -> None:
        self.jobs = jobs
        self.opened = [open_meeting(job, adopted=False) for job in jobs]
        entered = [pool.submit(one.__enter__) for one in self.opened]
        self.sides = [one.result(timeout=30) for one in entered]
        done = [
            pool.submit(side.agree, introduction(job, side.node_rank), *extra)
            for side, job, extra in zip(self.sides, jobs, [(None,), (), ()], strict=False)
        ]
        for one in done:
            one.result(timeout=30)

    def end(self) -> None:
        for one in reversed(self.opened):
            one.__exit__(None, None, None)


@pytest.fixture
def meet(nodes: Any, pool: ThreadPoolExecutor) -> Iterator[Callable[..., Any]]:
    made: list[Meet] = []

    def start(number: int, who: list[int] | None = None, **launch: Any) -> Any:
        jobs = nodes(number, **launch)
        made.append(Meet(jobs if who is None else [jobs[n] for n in who], pool))
        return made[-1].sides

    yield start
    for one in made:
        one.end()


def until(condition: Callable[[], Any], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestTheyRun:
    def test_each_attempt_has_a_store_of_its_own(self, meet: Any) -> None:
        lead, other = meet(2)
        ports = []
        for attempt in (0, 1):
            lead.begin(attempt)
            other.begin(attempt)
            assert other.port == lead.port
            ports.append(lead.port)
            with socket.create_connection((other.host, other.port), timeout=5):
                pass
        assert lead.host == "localhost" and other.host == "127.0.0.1"

    def test_what_a_node_reports_and_what_is_decided(
        self, meet: Any, pool: ThreadPoolExecutor
    ) -> None:
        lead, other = meet(2)
        for attempt, outcome in ((0, None), (1, OK)):
            answer = pool.submit(other.report, attempt, ENDED)
            told, lost = lead.reports(attempt)
            assert lost == {} and told[1]["returned"] == [[1, "completed"]]
            assert not answer.done()
            lead.decide(attempt, outcome)
            assert answer.result(timeout=20) == outcome

    def test_a_failure_is_known_on_all_nodes(self, meet: Any) -> None:
        lead, second, third = meet(3)
        assert not any(side.trouble(0) for side in (lead, second, third))
        second.alarm(0)
        until(lambda: lead.trouble(0))  # who asks again and again, as the launcher does
        until(lambda: third.trouble(0))
        assert not third.trouble(1)

    def test_the_interface_between_them(self, meet: Any) -> None:
        assert [side.interface() for side in meet(2)] == ["lo", "lo"]


class TestOneIsLost:
    def test_a_node_that_ends_without_a_word(self, meet: Any) -> None:
        lead, other = meet(2)
        other.lines[0].close()  # as the kernel does when a process is killed
        until(lambda: lead.trouble(0))
        told, lost = lead.reports(0)
        assert told == {} and lost == {1: "ended without a word"}

    def test_node_0_ends_without_a_word(self, meet: Any) -> None:
        lead, other = meet(2)
        lead.lines[1].close()
        until(lambda: other.trouble(0))
        end = other.report(0, ENDED)
        assert end["state"] == "failed" and "node 0 ended without a word" in end["message"]

    def test_a_node_that_falls_silent(self, nodes: Any, pool: ThreadPoolExecutor) -> None:
        """As when a cable is pulled: the connection stays, nothing comes any more."""
        first, second = nodes(2, timeout_s=3, stop_grace_s=30)
        with open_meeting(first, adopted=False) as lead:
            assert isinstance(lead, Lead)
            port = int(lead.endpoint.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port)) as dumb:
                hello = {"what": "hello", **introduction(second, 1)}
                dumb.sendall(json.dumps(hello).encode() + b"\n")
                lead.agree(introduction(first, 0), None)
                begun = time.monotonic()
                assert lead.reports(0) == ({}, {1: "was silent for 3 s"})
                assert 2 < time.monotonic() - begun < 25  # not the 33 s that reports may take

    def test_a_node_that_speaks_but_does_not_end(self, meet: Any) -> None:
        lead, _ = meet(2, timeout_s=2, stop_grace_s=0.1)
        told, lost = lead.reports(0)
        assert told == {} and lost == {1: "did not end within 2.1 s after the others"}


def test_a_launcher_around_has_brought_the_ranks_together(nodes: Any, tmp_path: Path) -> None:
    _, second = nodes(2)
    with open_meeting(second, adopted=True) as meeting:
        assert isinstance(meeting, Lead) and meeting.lines == {}
        meeting.agree(introduction(second, 0), None)  # without waiting for anybody
