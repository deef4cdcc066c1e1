"""memory.estimate: bytes by hand, and advice."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.record.memory import GIB, KEYS, Sizes, gib, section, unknown

SIZES = Sizes(
    parameters=10 * GIB,
    gradients=10 * GIB,
    optimizer=20 * GIB,
    activations=2 * GIB,
    largest_block=1 * GIB,
    outside_blocks=2 * GIB,
    gathered_share=1.0,
)
DDP = {"gradient_as_bucket_view": True}
FSDP = {"reshard_after_forward": True, "cpu_offload": False}


def test_what_a_replica_holds() -> None:
    assert SIZES.replicated({}) == 42 * GIB
    assert SIZES.replicated(DDP) == 42 * GIB
    assert SIZES.replicated({"gradient_as_bucket_view": False}) == 52 * GIB  # buckets of their own


def test_what_a_shard_holds() -> None:
    # 40 / 4 sharded; 2 x 2 outside of blocks, 3 + 1 of a block; 2 being averaged; 2 activations
    assert SIZES.sharded(FSDP, 4) == (10 + 4 + 4 + 2 + 2) * GIB
    # all 8 of blocks stay, and a buffer of one
    assert SIZES.sharded(FSDP | {"reshard_after_forward": False}, 4) == (10 + 4 + 10 + 2 + 2) * GIB
    assert SIZES.sharded(FSDP | {"prefetch": 3}, 4) == (10 + 4 + 6 + 2 + 2) * GIB
    assert SIZES.sharded(FSDP | {"cpu_offload": True}, 4) == (4 + 4 + 2 + 2) * GIB


def test_low_precision_halves_what_is_gathered() -> None:
    low = Sizes(**{**vars(SIZES), "gathered_share": 0.5})
    assert low.sharded(FSDP, 4) == (10 + 2 + 2 + 2 + 2) * GIB
    assert low.sharded(FSDP | {"gather_dtype": "float32"}, 4) == SIZES.sharded(FSDP, 4)


def test_a_whole_section() -> None:
    found = section(SIZES, DDP, 4, 4, 80 * GIB)
    assert tuple(found) == KEYS
    assert found == {
        "parameters_gib": 10,
        "gradients_gib": 10,
        "optimizer_gib": 20,
        "activations_gib": 2,
        "ddp_gib": 42,
        "fsdp_gib": 22,
        "available_gib": 80,
        "fits": True,
        "advice": "fits DDP: 42.0 of 80.0 GiB a rank",
        "why": None,
    }


def test_unknown_is_null_with_the_reason() -> None:
    found = unknown("no")
    assert tuple(found) == KEYS
    assert {key for key in found if found[key] is not None} == {"why"}


@pytest.mark.parametrize(
    ("strategy", "ranks", "room", "fits", "advice"),
    [
        ({}, 1, 80, True, "fits one process: 42.0 of 80.0 GiB"),
        (
            DDP,
            4,
            40,
            False,
            "use strategy=fsdp: DDP needs 42.0 GiB a rank, 36.0 of 40.0 can be used; FSDP over 4 "
            "ranks needs 22.0",
        ),
        # a tenth is left free
        (DDP, 4, 47, True, "fits DDP: 42.0 of 47.0 GiB a rank"),
        (
            DDP,
            4,
            46,
            False,
            "use strategy=fsdp: DDP needs 42.0 GiB a rank, 41.4 of 46.0 can be used; FSDP over 4 "
            "ranks needs 22.0",
        ),
        (
            DDP,
            4,
            20,
            False,
            "does not fit: DDP needs 42.0 GiB a rank, FSDP over 4 ranks 22.0, 18.0 of 20.0 can be "
            "used; use strategy=fsdp over more ranks",
        ),
        (
            {},
            1,
            20,
            False,
            "does not fit: one process needs 42.0 GiB, 18.0 of 20.0 can be used; use strategy=fsdp "
            "over more ranks",
        ),
        (
            FSDP,
            4,
            80,
            True,
            "fits FSDP over 4 ranks: 22.0 of 80.0 GiB a rank; DDP would fit too, with 42.0",
        ),
        (FSDP, 4, 40, True, "fits FSDP over 4 ranks: 22.0 of 40.0 GiB a rank; DDP needs 42.0"),
        (
            FSDP,
            4,
            20,
            False,
            "does not fit: FSDP over 4 ranks needs 22.0 GiB a rank, 18.0 of 20.0 can be used; use "
            "more ranks",
        ),
    ],
)
def test_advice(strategy: dict[str, Any], ranks: int, room: int, fits: bool, advice: str) -> None:
    found = section(SIZES, strategy, ranks, ranks, room * GIB)
    assert (found["fits"], found["advice"]) == (fits, advice)


def test_large_activations_have_ways_out_of_their_own() -> None:
    large = Sizes(**{**vars(SIZES), "activations": 40 * GIB})
    advice = section(large, FSDP, 4, 4, 40 * GIB)["advice"]
    assert advice.endswith(
        "; use more ranks, activation_checkpointing=blocks or a smaller micro-batch "
        "(run.accumulation_steps)"
    )


def test_how_it_is_written() -> None:
    assert [gib(v) for v in (120.04, 3.14, 0.0789, 0.003)] == ["120.0", "3.1", "0.079", "0.003"]
