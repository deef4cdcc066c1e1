"""The doctor's lines as a person reads them."""

from __future__ import annotations

import io

from rich.console import Console

from paceline.report.doctor import Findings
from tests.diagnose.test_doctor import DISK, TORCH, rates


def shown(width: int, *topics: tuple[str, dict[str, object]]) -> tuple[Findings, list[str]]:
    out = io.StringIO()
    found = Findings(Console(file=out, width=width))
    for topic, facts in topics:
        found.add(topic, facts)
    found.end()
    return found, out.getvalue().splitlines()


def test_state_name_value_then_why_and_the_way_out() -> None:
    _, said = shown(160, ("disk", DISK | {"fsync_s": 1.9}))
    assert said[1].split(maxsplit=3)[:3] == ["slow", "disk", "write"]
    assert said[2].strip() == "a save that waits for the disk takes 20 times its copy"
    assert said[3].strip().startswith("-> checkpoint=async")
    assert said[-1] == "2 ok, 1 slow, 0 missing"


def test_nothing_is_wider_than_the_terminal() -> None:
    _, said = shown(60, ("disk", DISK | {"fsync_s": 1.9}), ("loader", rates((0, 9), (2, 5))))
    assert max(map(len, said)) <= 60


def test_slow_is_fine_and_missing_is_not() -> None:
    assert shown(99, ("disk", DISK | {"fsync_s": 1.9}))[0].fine
    assert not shown(99, ("torch", TORCH | {"error": "ImportError: x"}))[0].fine


def test_json_has_the_lines_and_the_figures() -> None:
    found, _ = shown(99, ("torch", TORCH))
    made = found.as_json()
    assert made["counts"] == {"ok": 2, "slow": 0, "missing": 0}
    assert [set(line) for line in made["lines"]] == [
        {"name", "state", "value", "why", "way_out"}
    ] * 2
    assert made["facts"]["torch"]["version"] == "2.13.0"
