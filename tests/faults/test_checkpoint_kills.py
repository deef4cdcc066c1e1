"""Twenty SIGKILLs of whole jobs around their saves, by the campaign of benchmarks/crashes.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import xxhash

from benchmarks.crashes import MOMENTS, OFTEN, campaign
from benchmarks.victim import Victim, look, torn

pytestmark = pytest.mark.faults


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(900)
def test_nine_kills_lose_nothing_that_was_committed(tmp_path: Path) -> None:
    victims = campaign(9, 0, tmp_path, [("ddp", "sync"), ("ddp", "async"), ("fsdp", "dcp")])
    assert [said for victim in victims for said in victim.wrong] == []
    assert sum(victim.kills for victim in victims) == 9
    assert [victim.most_lost for victim in victims] == [5, 10, 5]
    assert all(max(victim.lost) <= victim.most_lost for victim in victims)
    assert sum(victim.in_staging for victim in victims) > 0
    assert all(victim.loads > 1 for victim in victims)


class TestWhatTheCampaignWouldSee:
    """The same look at a disk on which something did go wrong."""

    def victim(self, tmp_path: Path, *steps: int) -> Victim:
        found = Victim(tmp_path, "ddp", "sync", 100)
        for step in steps:
            place = found.shelf / f"step_{step:08d}"
            place.mkdir(parents=True)
            (place / "state.pt").write_bytes(b"state")
            files = {"state.pt": {"size": 5, "xxh3": xxhash.xxh3_64_hexdigest(b"state")}}
            (place / "manifest.json").write_text(json.dumps({"files": files}))
        return found

    def done(self, victim: Victim, steps: int) -> list[str]:
        (victim.folder / "steps_done").write_text(f"{steps:10d}")
        look(victim)
        return [said.partition(": ")[2] for said in victim.wrong]

    def test_nothing_wrong(self, tmp_path: Path) -> None:
        victim = self.victim(tmp_path, 5, 10)
        (victim.shelf / ".staging/step_00000015").mkdir(parents=True)
        assert self.done(victim, 15) == []
        assert (victim.newest, victim.lost, victim.in_staging) == (10, [5], 1)

    def test_a_torn_file(self, tmp_path: Path) -> None:
        victim = self.victim(tmp_path, 5, 10)
        place = victim.shelf / "step_00000010"
        (place / "state.pt").write_bytes(b"stat")
        (place / ".written").mkdir()
        assert len(torn(place)) == 2
        (place / "manifest.json").unlink()
        assert "FileNotFoundError" in self.done(victim, 11)[0]

    def test_a_committed_one_that_is_gone(self, tmp_path: Path) -> None:
        victim = self.victim(tmp_path, 5)
        victim.newest = 10
        assert self.done(victim, 10) == ["step 10 was committed, the newest is 5"]

    def test_too_many_steps_lost(self, tmp_path: Path) -> None:
        said = self.done(self.victim(tmp_path, 5), 11)
        assert said == ["11 steps were done, the newest committed is 5"]

    def test_something_set_aside(self, tmp_path: Path) -> None:
        victim = self.victim(tmp_path, 5)
        (victim.shelf / "quarantine").mkdir()
        assert self.done(victim, 5) == ["something was moved to quarantine"]


def test_moments_are_weighed_in_percent() -> None:
    assert len(MOMENTS) == len(OFTEN) and sum(OFTEN) == 100
