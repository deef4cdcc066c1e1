"""Rules of the sharded strategies."""

from __future__ import annotations

import pytest

from tests.controller.test_rules import broken, devices, no_launcher  # noqa: F401


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_groups_of_hsdp_are_equal(ranks: int) -> None:
    said = broken(
        {"launch.nproc": ranks, "strategy": {"shard_ranks": 2}, "data.global_batch_size": 12},
        strategy="hsdp",
    )
    if ranks == 1:
        assert said == [
            "strategy=hsdp: it needs at least 2 ranks; raise launch.nproc, or use strategy=single"
        ]
    elif ranks == 3:
        assert said == [
            "strategy.shard_ranks=2: 3 ranks can't be shared into equal groups; give a divisor of 3"
        ]
    else:
        assert said == []


def test_auto_groups_are_those_of_a_node_or_half_of_one() -> None:
    changes = {"launch.nproc": 4, "strategy": {"shard_ranks": "auto"}}
    assert broken(changes, strategy="hsdp") == []
    changes |= {"launch.nproc": 5, "data.global_batch_size": 20}
    (said,) = broken(changes, strategy="hsdp")
    assert said.startswith("strategy.shard_ranks=auto: 5 ranks can't be shared into equal groups; ")
    places = {"launch.rdzv_endpoint": "node0:1", "launch.node_rank": 0}
    assert broken(changes | places | {"launch.nnodes": 2}, strategy="hsdp") == []
    assert broken(changes | places | {"launch.nnodes": "1:2"}, strategy="hsdp") == [said]


def test_groups_fit_however_many_nodes_there_are() -> None:
    changes = {"launch.nproc": 2, "launch.rdzv_endpoint": "node0:1", "launch.node_rank": 0}
    changes |= {"strategy": {"shard_ranks": 4}, "data.global_batch_size": 24}
    assert broken(changes | {"launch.nnodes": 2}, strategy="hsdp") == []
    assert broken(changes | {"launch.nnodes": "2:3"}, strategy="hsdp") == [
        "strategy.shard_ranks=4: 6 ranks can't be shared into equal groups; give a divisor of 2"
    ]
    changes |= {"launch.nproc": 1, "strategy": {"shard_ranks": 1}, "launch.nnodes": "1:2"}
    assert broken(changes, strategy="hsdp") == [
        "strategy=hsdp: it needs at least 2 ranks; raise launch.nproc, or use strategy=single"
    ]


def test_nothing_is_offloaded_from_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"launch.nproc": 2, "strategy": {"cpu_offload": True}}
    (said,) = broken(changes, strategy="fsdp")
    assert "use strategy.cpu_offload=false" in said
    devices(monkeypatch, 2)
    assert broken(changes | {"run.device": "auto"}, strategy="fsdp") == []
