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


def test_auto_groups_are_judged_in_the_ranks() -> None:
    changes = {"launch.nproc": 4, "strategy": {"shard_ranks": "auto"}}
    assert broken(changes, strategy="hsdp") == []


def test_nothing_is_offloaded_from_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"launch.nproc": 2, "strategy": {"cpu_offload": True}}
    (said,) = broken(changes, strategy="fsdp")
    assert "use strategy.cpu_offload=false" in said
    devices(monkeypatch, 2)
    assert broken(changes | {"run.device": "auto"}, strategy="fsdp") == []
