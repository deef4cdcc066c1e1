"""Which of several ranks was the cause of a failure, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.record.failure import MORE_MEMORY, cause, in_order

TIMED_OUT = "[/x/gloo/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"


def account(rank: int, communication: bool, **more: Any) -> dict[str, Any]:
    return {
        "time": float(rank),
        "rank": rank,
        "phase": "backward",
        "step": 7,
        "kind": "comm_timeout" if communication else "error",
        "communication": communication,
        "timed_out": False,
        "type": "RuntimeError" if communication else "ValueError",
        "message": "Connection closed by peer" if communication else "planted",
        "explained": False,
        "traceback": f"traceback of {rank}",
        **more,
    }


def found(failures: list[dict[str, Any]], exits: dict[int, int], **more: Any) -> dict[str, Any]:
    given = {"world_size": 4, "local_world_size": 2, "lost": {}, "starved": False} | more
    return cause(in_order(failures), exits, **given)


def test_an_error_of_its_own_comes_before_broken_collectives() -> None:
    accounts = [account(r, r != 2) for r in range(4)]
    said = found(accounts, {0: 1, 2: 1})
    assert (said["kind"], said["rank"], said["traceback"]) == ("error", 2, "traceback of 2")
    assert said["message"] == ("ValueError: planted\nranks 0, 1, 3: terminated because of rank 2")


@pytest.mark.parametrize(
    ("exits", "how"),
    [
        ({3: -9}, "rank 3 was ended by SIGKILL (as the kernel does when memory runs out)"),
        ({3: 5}, "rank 3 left with exit code 5"),
        ({0: 1}, "rank 3 ended without a word"),
    ],
)
def test_a_rank_that_left_no_account(exits: dict[int, int], how: str) -> None:
    said = found([account(r, True) for r in range(3)], exits)
    assert (said["kind"], said["rank"], said["step"]) == ("worker_died", 3, 7)
    first, others = said["message"].splitlines()
    assert first == f"{how}; see node1/log/rank3.log on its node"
    assert others == "ranks 0, 1, 2: terminated because of rank 3"


def test_where_its_log_lies() -> None:
    said = found([account(1, True)], {0: 1}, world_size=2)
    assert said["message"].startswith("rank 0 left with exit code 1; see log/rank0.log\n")
    said = found([account(1, True)], {0: 1}, world_size=2, log="log/restart1")
    assert "; see log/restart1/rank0.log\n" in said["message"]


def test_one_that_was_ended_while_memory_ran_out() -> None:
    said = found([account(1, True)], {0: -9}, world_size=2, starved=True)
    assert (said["kind"], said["rank"]) == ("oom", 0)
    first, way, _ = said["message"].splitlines()
    assert first.endswith("; see log/rank0.log") and way == MORE_MEMORY


class TestNoAnswer:
    WAITED = (account(0, True, timed_out=True, message=TIMED_OUT), account(1, True))

    def test_those_that_did_not_answer_are_named(self) -> None:
        said = found(list(self.WAITED), {0: 1})
        assert (said["kind"], said["rank"], said["traceback"]) == (
            "comm_timeout",
            2,
            "traceback of 0",
        )
        assert said["message"].startswith(
            "ranks 2, 3 did not answer, rank 0 waited in vain (Timed out waiting 3000ms for recv "
        )

    def test_one_that_was_seen_to_die_did_not_only_wait(self) -> None:
        said = found(list(self.WAITED), {3: -11})
        assert (said["kind"], said["rank"]) == ("worker_died", 3)

    def test_all_of_them_waited(self) -> None:
        accounts = [account(r, True, timed_out=True, message=TIMED_OUT) for r in range(4)]
        said = found(accounts, {0: 1})
        assert (said["kind"], said["rank"]) == ("comm_timeout", 0)


def test_a_node_that_is_lost() -> None:
    accounts = [account(0, True), account(1, True)]
    said = found(accounts, {0: 1}, lost={1: "was silent for 5 s"})
    assert (said["kind"], said["rank"], said["phase"]) == ("worker_died", 2, "backward")
    assert said["message"].startswith("rank 2: node 1 was silent for 5 s; see node1/log/rank2.log")


@pytest.mark.parametrize("code", [-6, -11])
def test_a_node_that_is_lost_breaks_connections(code: int) -> None:
    said = found([account(0, True)], {0: 1, 1: code}, lost={1: "ended without a word"})
    assert (said["kind"], said["rank"]) == ("worker_died", 2)
    said = found([account(0, True)], {0: 1, 1: -9}, lost={1: "ended without a word"})
    assert (said["kind"], said["rank"]) == ("worker_died", 1)


def test_a_node_is_named_by_its_own_number() -> None:
    accounts = [account(0, True), account(1, True)]
    said = found(accounts, {0: 1}, lost={3: "was silent for 5 s"}, nodes=[0, 3])
    assert said["rank"] == 2
    assert said["message"].startswith("rank 2: node 3 was silent for 5 s; see node3/log/rank2.log")


def test_a_node_that_is_lost_because_of_an_error_elsewhere() -> None:
    said = found([account(0, False)], {0: 1}, lost={1: "was silent for 5 s"})
    assert (said["kind"], said["rank"]) == ("error", 0)
