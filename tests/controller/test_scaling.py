"""scaling: what becomes of batch and learning rate, in the frozen job and its identities."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from paceline.__main__ import config_dir
from paceline.controller.micro_batch import candidates
from paceline.controller.plan import CannotRun, Job
from paceline.controller.rules.scaling import RULES
from paceline.controller.scaling import effective, job_batch, section
from paceline.types import ConfigError
from tests.controller.test_plan import planned_job

DDP = ["strategy=ddp", "run.device=cpu", "data.global_batch_size=32"]


def config(mode: str = "strong", rule: str = "none", base: int | None = None) -> dict[str, Any]:
    return {
        "scaling": {"mode": mode, "learning_rate": rule, "base_batch_size": base},
        "data": {"global_batch_size": 32, "other": 1},
        "optimizer": {"lr": 0.1},
    }


@pytest.mark.parametrize(
    ("mode", "rule", "base", "batch", "factor"),
    [
        ("strong", "none", None, 32, 1.0),
        ("strong", "linear", None, 32, 1.0),  # the batch is the one that was typed
        ("strong", "linear", 8, 32, 4.0),
        ("strong", "sqrt", 8, 32, 2.0),
        ("weak", "none", None, 128, 1.0),
        ("weak", "linear", None, 128, 4.0),  # with ranks
        ("weak", "sqrt", None, 128, 2.0),
        ("weak", "linear", 256, 128, 0.5),  # with the batch
    ],
)
def test_four_ranks(mode: str, rule: str, base: int | None, batch: int, factor: float) -> None:
    typed = config(mode, rule, base)
    found, frozen = section(typed, 4), effective(typed, 4)
    assert job_batch(typed, 4) == batch
    assert (found["factor"], found["lr"]) == (factor, pytest.approx(0.1 * factor))
    assert (found["global_batch_size"], found["per_rank_batch_size"]) == (batch, batch // 4)
    assert found["base_batch_size"] == (base or 32)
    assert frozen["data"] == {"global_batch_size": batch, "other": 1}
    assert frozen["optimizer"]["lr"] == pytest.approx(0.1 * factor)
    assert typed == config(mode, rule, base)  # it is not changed


def test_nothing_to_scale() -> None:
    typed = config() | {"data": {}, "optimizer": {}}
    assert effective(typed, 4) == typed
    assert section(typed, 4) == {
        "mode": "strong",
        "learning_rate": "none",
        "base_batch_size": None,
        "factor": 1.0,
        "lr": None,
        "global_batch_size": None,
        "per_rank_batch_size": None,
    }


class TestAJob:
    @pytest.fixture(scope="class")
    @classmethod
    def jobs(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Job]:
        place = tmp_path_factory.mktemp("jobs")
        rule = "scaling.learning_rate=sqrt"
        return {
            (mode, n): planned_job(place, *DDP, rule, f"scaling.mode={mode}", f"launch.nproc={n}")
            for mode in ("strong", "weak")
            for n in (1, 2)
        }

    def test_it_is_frozen_with_what_is_trained(self, jobs: dict[tuple[str, int], Job]) -> None:
        found = {key: job.config["data"]["global_batch_size"] for key, job in jobs.items()}
        assert found == {("strong", 1): 32, ("strong", 2): 32, ("weak", 1): 32, ("weak", 2): 64}
        rates = {key: job.config["optimizer"]["lr"] for key, job in jobs.items()}
        assert rates.pop(("weak", 2)) == pytest.approx(1e-3 * math.sqrt(2))
        assert set(rates.values()) == {1e-3}
        assert jobs["weak", 2].requested["scaling"]["per_rank_batch_size"] == 32

    def test_weak_on_more_ranks_is_other_work(self, jobs: dict[tuple[str, int], Job]) -> None:
        assert len({job.config_hash for job in jobs.values()}) == 4
        other = jobs["weak", 2].work_hash
        same = {job.work_hash for key, job in jobs.items() if key != ("weak", 2)}
        assert len(same) == 1 and other not in same

    def test_what_was_typed_in_another_way_is_the_same_work(self, tmp_path: Path) -> None:
        weak = planned_job(tmp_path, *DDP, "scaling.mode=weak", "launch.nproc=2")
        words = ["strategy=ddp", "run.device=cpu", "launch.nproc=2", "data.global_batch_size=64"]
        strong = planned_job(tmp_path, *words)
        assert weak.work_hash == strong.work_hash
        assert weak.config_hash != strong.config_hash


def test_the_micro_batch_search_shares_the_batch_of_the_job() -> None:
    OmegaConf.register_new_resolver("paceline.cell", lambda: "x", replace=True)
    sizes = {}
    for mode in ("strong", "weak"):
        words = [*DDP, "launch.nproc=4", f"scaling.mode={mode}", "data.global_batch_size=8"]
        with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="paceline"):
            root = compose("config", words, return_hydra_config=True)
        sizes[mode] = [one.micro_batch_size for one in candidates(root)]
    assert sizes == {"strong": [2, 1], "weak": [8, 4, 2, 1]}


def broken(**changes: Any) -> list[str]:
    """What the rules of `scaling` say."""
    changed = config() | {"scheduler": {}} | changes
    said = [rule(changed, {"data": "mine"}, 2) for _, rule in RULES]
    return [sentence for sentence in said if sentence]


class TestRefused:
    def test_a_batch_that_micro_batches_cannot_share(self, tmp_path: Path) -> None:
        words = ["scaling.mode=weak", "launch.nproc=4", "run.accumulation_steps=3"]
        with pytest.raises(CannotRun) as caught:
            planned_job(tmp_path, *DDP, *words)
        assert caught.value.problems == [
            "data.global_batch_size=32: that of a rank under scaling.mode=weak, "
            "run.accumulation_steps=3 can't share it equally; use a multiple of 3, as "
            "data.global_batch_size=33"
        ]
        # 4 ranks can't share 6, but each can have them
        planned_job(tmp_path, *DDP, "scaling.mode=weak", "data.global_batch_size=6")

    @pytest.mark.parametrize(
        ("scaling", "way"),
        [
            ({"mode": "weak"}, "use scaling.mode=strong"),
            ({"learning_rate": "sqrt"}, "use scaling.learning_rate=none"),
        ],
    )
    def test_no_batch(self, scaling: dict[str, str], way: str) -> None:
        (said,) = broken(scaling={**config()["scaling"], **scaling}, data={})
        key, value = next(iter(scaling.items()))
        assert said.startswith(f"scaling.{key}={value}: data=mine has no data.global_batch_size")
        assert way in said

    @pytest.mark.parametrize("lr", [None, True, [0.1]])
    def test_no_learning_rate(self, lr: Any) -> None:
        rule = config(rule="linear")["scaling"]
        (said,) = broken(scaling=rule, optimizer={} if lr is None else {"lr": lr})
        assert said.startswith("scaling.learning_rate=linear: there is no number optimizer.lr")

    def test_a_scheduler_with_rates_of_its_own(self) -> None:
        rule = config(rule="linear")["scaling"]
        (said,) = broken(scaling=rule, scheduler={"max_lr": 1})
        assert "(scheduler.max_lr), so that optimizer.lr has no effect" in said

    def test_keys_are_checked(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            planned_job(tmp_path, "scaling.mode=week", "scaling.base_batch_size=0")
        first, second = caught.value.problems
        assert first.startswith("scaling.mode=week: no such choice; give strong or weak")
        assert second == "scaling.base_batch_size=0: give 1 or more"
