"""Rules of several nodes: where they meet, which one this is, what SLURM says, which network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

import psutil
import pytest

from paceline.controller.rules import node_counts, node_rank
from paceline.controller.rules.nodes import RULES, expected_nodes
from paceline.types import settings
from tests.controller.test_rules import broken

LAUNCH: dict[str, Any] = {
    "nproc": 4,
    "nnodes": 1,
    "rdzv_endpoint": None,
    "node_rank": None,
    "gloo_interface": None,
    "nccl_interface": None,
    "nccl": {},
}
TWO = {"nnodes": 2, "rdzv_endpoint": "node0:29500"}
ELASTIC = TWO | {"nnodes": "2:4"}


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "NCCL_", "GLOO_", "WORLD_SIZE")):
            monkeypatch.delenv(name)
    yield


def said(env: dict[str, Any] | None = None, **launch: Any) -> str | None:
    """The one rule that this config breaks in this environment; None: none."""
    config = {"launch": LAUNCH | launch}
    world = config["launch"]["nproc"] * node_counts(config)[1]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (env or {}).items():
            patch.setenv(name, str(value))
        found = [s for _, rule in RULES if (s := rule(config, {}, world))]
    assert len(found) <= 1, found
    return found[0] if found else None


class TestWhereTheyMeet:
    def test_all_is_said(self) -> None:
        assert said() is None
        assert said(**TWO, node_rank=1) is None
        assert said({"SLURM_NODEID": 1}, **TWO) is None

    def test_no_endpoint(self) -> None:
        assert said(nnodes=2, node_rank=0) == (
            "launch.nnodes=2: where do the nodes meet? On each of them, give "
            "launch.rdzv_endpoint=HOST:PORT, an address of node 0 and a free port of it"
        )

    def test_no_node_rank(self) -> None:
        assert said(**TWO) == (
            "launch.nnodes=2: which of them is this? Give launch.node_rank=0 on the node of "
            "launch.rdzv_endpoint, 1 to 1 on the others"
        )

    def test_a_node_rank_too_many(self) -> None:
        found = said(**TWO, node_rank=2) or ""
        assert found.startswith("launch.nnodes=2: launch.node_rank=2 is none of 0 to 1; ")

    @pytest.mark.parametrize("key", ["rdzv_endpoint", "node_rank"])
    def test_one_node_meets_nobody(self, key: str) -> None:
        value = {"rdzv_endpoint": "node0:29500", "node_rank": 1}[key]
        found = said(**{key: value}) or ""
        assert found.startswith(f"launch.{key}={value}: with launch.nnodes=1 this node would")

    def test_under_a_launcher_they_have_met(self) -> None:
        assert said({"WORLD_SIZE": 8}, nnodes=2) is None

    def test_which_node_this_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SLURM_NODEID", "1")
        assert node_rank({"launch": LAUNCH}) == 0
        assert node_rank({"launch": LAUNCH | TWO}) == 1
        assert node_rank({"launch": LAUNCH | TWO | {"node_rank": 0}}) == 0


class TestSlurm:
    """SLURM's variables by hand: what contradicts stops before the start, with both numbers."""

    TASKS = {"SLURM_NNODES": 2, "SLURM_NTASKS": 2, "SLURM_NODEID": 1, "SLURM_PROCID": 1}  # noqa: RUF012

    def test_one_task_a_node_is_right(self) -> None:
        assert said(self.TASKS, **TWO) is None
        assert said({"SLURM_NNODES": 1, "SLURM_NTASKS": 1, "SLURM_PROCID": 0}) is None

    def test_more_nodes_than_are_used(self) -> None:
        found = said({"SLURM_JOB_NUM_NODES": 2}) or ""
        assert found.startswith("launch.nnodes=1: SLURM gave SLURM_JOB_NUM_NODES=2; ")
        assert "set launch.nnodes=2" in found and "srun --nodes=1 --ntasks=1" in found

    def test_a_step_may_have_fewer_than_its_job(self) -> None:
        assert said({"SLURM_JOB_NUM_NODES": 2, "SLURM_NNODES": 1}) is None

    @pytest.mark.parametrize(
        "env",
        [{"SLURM_NTASKS": 8, "SLURM_NNODES": 2}, {"SLURM_NTASKS_PER_NODE": 4, "SLURM_NNODES": 2}],
    )
    def test_a_task_a_rank(self, env: dict[str, int]) -> None:
        found = said(env, **TWO, node_rank=0) or ""
        name, value = next(iter(env.items()))
        assert found.startswith("launch.nnodes=2: that is 8 ranks, but SLURM starts ")
        assert f"{name}={value}" in found and "--ntasks-per-node=1" in found

    def test_a_task_more_than_nodes(self) -> None:
        found = said({"SLURM_PROCID": 2}, **TWO, node_rank=0) or ""
        assert "SLURM_PROCID=2" in found and "--ntasks-per-node=1" in found

    def test_another_node_than_slurm_says(self) -> None:
        found = said(self.TASKS, **TWO, node_rank=0) or ""
        assert found.startswith("launch.node_rank=0: SLURM says that this is node SLURM_NODEID=1")

    def test_torchrun_in_a_task_has_the_say(self) -> None:
        assert said({"SLURM_NTASKS": 2, "SLURM_NNODES": 2, "WORLD_SIZE": 8}) is None


class TestAsManyAsThereAre:
    """launch.nnodes=LO:HI."""

    @pytest.mark.parametrize(
        ("nnodes", "counts"), [(3, (3, 3)), ("1:2", (1, 2)), ("2:2", (2, 2)), ("9:10", (9, 10))]
    )
    def test_what_is_typed(self, nnodes: int | str, counts: tuple[int, int]) -> None:
        assert node_counts({"launch": LAUNCH | {"nnodes": nnodes}}) == counts

    @pytest.mark.parametrize("nnodes", ["2:1", "0:2", "1:", ":2", "2", "1:2:3", "1-2", "01:2", ""])
    def test_what_is_none(self, nnodes: str) -> None:
        with pytest.raises(ValueError, match=f"^nnodes={nnodes}: give the number of nodes, or "):
            settings.node_counts(nnodes)

    def test_any_of_the_most_may_be_this_one(self) -> None:
        assert said(**ELASTIC, node_rank=3) is None
        found = said(**ELASTIC, node_rank=4) or ""
        assert found.startswith("launch.nnodes=2:4: launch.node_rank=4 is none of 0 to 3; ")
        found = said(nnodes="1:1", node_rank=1) or ""
        assert found.startswith("launch.node_rank=1: with launch.nnodes=1:1 this node would train")

    @pytest.mark.parametrize("given", [2, 3, 4])
    def test_those_that_slurm_gave_are_waited_for(self, given: int) -> None:
        env = {"SLURM_NNODES": given, "SLURM_NTASKS": given, "SLURM_NODEID": 0}
        assert said(env, **ELASTIC) is None
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_NNODES", str(given))
            assert expected_nodes({"launch": LAUNCH | ELASTIC}) == given
            assert expected_nodes({"launch": LAUNCH | TWO}) == 2
        assert expected_nodes({"launch": LAUNCH | ELASTIC}) == 4

    @pytest.mark.parametrize(("given", "ask"), [(1, 2), (5, 4)])
    def test_slurm_gave_too_few_or_too_many(self, given: int, ask: int) -> None:
        found = said({"SLURM_NNODES": given}, **ELASTIC, node_rank=0) or ""
        assert found.startswith(f"launch.nnodes=2:4: SLURM gave SLURM_NNODES={given}; ")
        assert found.endswith(f"or ask for {ask} (srun --nodes={ask} --ntasks={ask})")

    def test_a_task_a_node(self) -> None:
        found = said({"SLURM_NNODES": 2, "SLURM_NTASKS": 4}, **ELASTIC, node_rank=0) or ""
        assert "SLURM starts SLURM_NTASKS=4 times" in found and "--ntasks-per-node=1" in found


class TestTheSameTraining:
    """launch.nnodes=LO:HI, for each number of nodes."""

    PLACE: ClassVar[dict[str, Any]] = {
        "launch.nproc": 2,
        "launch.nnodes": "1:3",
        "launch.rdzv_endpoint": "node0:29500",
        "launch.node_rank": 0,
        "data.global_batch_size": 24,
    }

    def test_the_batch_is_shared_equally(self) -> None:
        assert broken(self.PLACE) == []
        assert broken(self.PLACE | {"data.global_batch_size": 16}) == [
            "data.global_batch_size=16: 6 ranks x run.accumulation_steps=1 can't share it equally; "
            "use a multiple of 12, as data.global_batch_size=12"
        ]
        (found,) = broken(self.PLACE | {"data.global_batch_size": 30})
        assert found.startswith("data.global_batch_size=30: 4 ranks x ")
        assert broken(self.PLACE | {"data.global_batch_size": 30, "launch.nnodes": 3}) == []

    def test_the_batch_must_not_follow_the_nodes(self) -> None:
        (found,) = broken(self.PLACE | {"scaling.mode": "weak"})
        assert found.startswith("launch.nnodes=1:3: under scaling.mode=weak the batch follows ")
        for nnodes in ("3:3", 3):
            assert broken(self.PLACE | {"scaling.mode": "weak", "launch.nnodes": nnodes}) == []

    def test_one_process_needs_one_node(self) -> None:
        (found,) = broken(self.PLACE | {"launch.nproc": 1}, strategy="single")
        assert "launch.nnodes=1:3 asks for 3; use strategy=ddp, or launch.nnodes=1" in found

    def test_a_launcher_around_says_how_many_there_are(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORLD_SIZE", "6")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        (found,) = broken(self.PLACE)
        assert found.startswith("launch.nnodes=1:3: the launcher around paceline, which started ")
        assert broken(self.PLACE | {"launch.nnodes": "3:3"}) == []


class TestInterfaces:
    THERE: ClassVar[list[str]] = [n for n in psutil.net_if_addrs() if n.startswith("lo")]

    @pytest.mark.parametrize("key", ["gloo_interface", "nccl_interface"])
    def test_one_that_is_not_there(self, key: str) -> None:
        what, _, there = (said(**{key: "nosuch0"}) or "").partition("; it has ")
        assert what == f"launch.{key}=nosuch0: this host has no interface nosuch0"
        assert self.THERE[0] in there.split(", ")  # others may come and go meanwhile

    def test_those_that_are_there(self) -> None:
        first = self.THERE[0]
        assert said(gloo_interface=first, nccl_interface=f"={first}") is None
        assert said(nccl_interface=first[:1]) is None  # NCCL takes prefixes, and all but some
        assert said(nccl_interface="^nosuch0") is None
        assert said(gloo_interface=first[:1]) is not None or len(first) == 1

    def test_the_environment_says_another(self) -> None:
        first = self.THERE[0]
        assert said({"GLOO_SOCKET_IFNAME": first}, gloo_interface=first) is None
        found = said({"GLOO_SOCKET_IFNAME": "eth7"}, gloo_interface=first) or ""
        assert found.startswith(f"launch.gloo_interface={first}: the environment says GLOO_SOCKET_")
        assert found.endswith("unset GLOO_SOCKET_IFNAME, or leave out launch.gloo_interface")

    def test_variables_of_nccl(self) -> None:
        assert said(nccl={"IB_DISABLE": 1}) is None
        assert said({"NCCL_IB_DISABLE": 1}, nccl={"IB_DISABLE": 1}) is None
        found = said({"NCCL_IB_DISABLE": 0}, nccl={"IB_DISABLE": 1}) or ""
        assert "launch.nccl.IB_DISABLE=1" in found and "NCCL_IB_DISABLE=0" in found
