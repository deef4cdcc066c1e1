"""Sizes and bandwidths of collectives, by numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.diagnose.trace.collectives import bus_factor
from tests.diagnose.trace.synthetic import OTHER, annotation, answered, launch, operator, talk

TOLD = {
    "Collective name": "allreduce",
    "In msg nelems": 1_000_000,
    "Out msg nelems": 1_000_000,
    "Group size": 4,
    "dtype": "Float",
}


def test_factors_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md: 2(n-1)/n, (n-1)/n, 1."""
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == 0.75
    assert bus_factor("reduce_scatter", 8) == 0.875
    assert bus_factor("all_to_all", 2) == 0.5
    assert bus_factor("broadcast", 4) == 1.0
    assert bus_factor("all_reduce", 1) is None
    assert bus_factor("barrier", 4) is None


def test_metadata_of_the_kernel(tmp_path: Path) -> None:
    """Twice 4 MB, in 1 ms and in 3 ms: 2 GB/s, times 1.5."""
    found = answered(tmp_path, [talk(0, 1000, **TOLD), talk(2000, 3000, **TOLD)])
    (line,) = found["collectives"]
    assert (line["collective"], line["dtype"], line["group_size"]) == ("all_reduce", "Float", 4)
    assert (line["count"], line["bytes"], line["total_us"]) == (2, 4_000_000, 4000)
    assert line["algorithm_gb_per_s"] == pytest.approx(2)
    assert line["bus_gb_per_s"] == pytest.approx(3)
    assert found["collectives_reasons"] == {}


def test_all_gather_counts_the_larger_buffer(tmp_path: Path) -> None:
    told = TOLD | {
        "Collective name": "_allgather_base",
        "Out msg nelems": 4_000_000,
        "dtype": "BFloat16",
    }
    (line,) = answered(tmp_path, [talk(0, 1000, **told)])["collectives"]
    assert (line["collective"], line["bytes"]) == ("all_gather", 8_000_000)
    assert line["bus_gb_per_s"] == pytest.approx(8 * 0.75)


def test_metadata_of_the_annotation_around_the_launch(tmp_path: Path) -> None:
    """Older traces have the shapes on the host's side alone."""
    around: list[dict[str, Any]] = [
        operator("record_param_comms", 0, 90),
        annotation(
            "nccl:all_reduce", 5, 80, **{"Input Dims": [[1000, 50]], "Input type": ["float"]}
        ),
        launch(20, 5, 9),
        annotation("nccl:all_to_all", 5, 80, OTHER, **{"Input Dims": [[7]], "Input type": ["int"]}),
        talk(100, 100, 9),
    ]
    found = answered(tmp_path, around)
    (line,) = found["collectives"]
    assert (line["collective"], line["bytes"], line["group_size"]) == ("all_reduce", 200_000, None)
    assert line["algorithm_gb_per_s"] == pytest.approx(2)
    assert line["bus_gb_per_s"] is None
    assert "how many ranks" in found["collectives_reasons"]["bus_gb_per_s"]


def test_without_metadata_nothing_is_guessed(tmp_path: Path) -> None:
    found = answered(tmp_path, [talk(0, 1000)])
    (line,) = found["collectives"]
    assert (line["bytes"], line["bus_gb_per_s"], line["count"]) == (None, None, 1)
    assert line["collective"].startswith("ncclDevKernel_AllReduce")
    assert "record_shapes=True" in found["collectives_reasons"]["bytes"]


def test_gloo_on_a_cpu_with_groups_that_are_all_alike(tmp_path: Path) -> None:
    """1.2 MB in 600 us between 3 ranks: 2 GB/s, times 4/3."""
    shapes = {"Input Dims": [[[100, 1000], [200000]]], "Input type": ["TensorList"]}
    one = {"Input Dims": [[300000]], "Input type": ["float"]}
    groups = [{"pg_name": "0", "pg_size": 3}, {"pg_name": "1", "pg_size": 3}]
    facts = {"distributedInfo": {"rank": 0, "world_size": 3, "pg_config": groups}}
    events = [
        annotation("gloo:all_reduce", 0, 600, OTHER, **one),
        annotation("gloo:broadcast", 700, 10, OTHER, **shapes),
    ]
    first, second = answered(tmp_path, events, **facts)["collectives"]
    assert (first["bytes"], first["group_size"]) == (1_200_000, 3)
    assert first["bus_gb_per_s"] == pytest.approx(2 * 4 / 3)
    assert (second["collective"], second["bytes"]) == ("broadcast", None)  # of unknown dtype


def test_groups_of_different_sizes_leave_a_groups_size_unknown(tmp_path: Path) -> None:
    groups = [{"pg_size": 3}, {"pg_size": 2}]
    facts = {"distributedInfo": {"pg_config": groups}}
    one = {"Input Dims": [[300]], "Input type": ["float"]}
    found = answered(tmp_path, [annotation("gloo:all_reduce", 0, 600, OTHER, **one)], **facts)
    assert found["collectives"][0]["group_size"] is None
