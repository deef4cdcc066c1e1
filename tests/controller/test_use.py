"""How busy a job keeps its machine: by hand, of real processes, and in a job's record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from paceline.controller.nvml import GPU_FIGURES, Devices, NoDevices, in_use
from paceline.controller.use import FIGURES, Look, Steady, Unseen, Use, cpu_percent
from tests.conftest import TINY, Command, Done


def look(at: float, cpu_s: float | None, **seen: float) -> Look:
    return Look(at, cpu_s, seen)


def test_percent_of_the_cores_by_hand() -> None:
    assert cpu_percent(look(10, 3.0), look(12, 6.0), cores=4) == pytest.approx(100 * 3 / (2 * 4))
    assert cpu_percent(None, look(12, 6.0), cores=4) is None
    assert cpu_percent(look(10, None), look(12, 6.0), cores=4) is None
    assert cpu_percent(look(10, 9.0), look(12, 6.0), cores=4) is None  # a rank has gone


class TestWhatCounts:
    def test_spans_between_steady_steps_and_not_the_last(self) -> None:
        steady = Steady(cores=2, warmup_steps=5)
        busy = {0: 50.0, 1: 50.0, 2: 1.0, 3: 1.5, 4: 2.5, 5: 90.0, 6: 90.0}
        cpu_s = 0.0
        for at, step in enumerate([1, 4, 6, 10, 20, 30, 30]):
            cpu_s += busy[at]
            steady.add(step, 30, look(at, cpu_s, gpu_percent=10.0 * at))
        # 6 is the first step after 5 of warm-up; what follows step 20 may be after the training
        assert steady.samples == 2
        assert steady.figures() == {
            "cpu_percent": pytest.approx(100 * (1.5 + 2.5) / (2 * 2)),
            "gpu_percent": pytest.approx(35.0),
        }

    def test_looks_in_long_steps_all_count(self) -> None:
        steady = Steady(cores=1, warmup_steps=1)
        for at, step in enumerate([1, 2, 2, 2, 3, 4, 4]):
            steady.add(step, 9, look(at, 0.5 * at, power_w=100.0 + at, gpu_memory_gib=9.0 - at))
        assert steady.samples == 3
        assert steady.figures() == {
            "cpu_percent": pytest.approx(50.0),
            "power_w": pytest.approx(103.0),  # at 2, 3 and 4
            "gpu_memory_gib": 7.0,
        }

    def test_a_job_that_goes_on_warms_up_again(self) -> None:
        steady = Steady(cores=1, warmup_steps=10)
        for at, step in enumerate([101, 105, 110, 111]):
            steady.add(step, 200, look(at, float(at)))
        assert steady.samples == 0
        for at, step in enumerate([115, 120], start=4):
            steady.add(step, 200, look(at, float(at)))
        assert steady.samples == 1

    def test_steps_beyond_the_training_do_not(self) -> None:
        steady = Steady(cores=1, warmup_steps=1)
        for at, step in enumerate([1, 2, 11, 12, 13]):
            steady.add(step, 10, look(at, float(at)))
        assert steady.samples == 0


BURNS = """
import subprocess, sys, time
end = time.monotonic() + 20
while time.monotonic() < end:
    subprocess.run([sys.executable, "-S", "-c", "sum(range(300000))"])
"""
"""Workers that come and go."""


@pytest.fixture
def coming_and_going() -> Iterator[psutil.Process]:
    process = subprocess.Popen([sys.executable, "-c", BURNS], start_new_session=True)
    yield psutil.Process(process.pid)
    for one in [*psutil.Process(process.pid).children(recursive=True), process]:
        one.kill()
    process.wait()


def used(tmp_path: Path, processes: Any, **given: Any) -> Use:
    (tmp_path / "log").mkdir()
    kept = {"devices": NoDevices(), "cores": os.cpu_count(), "warmup_steps": 1} | given
    return Use(processes, directory=tmp_path, **kept)


def test_workers_that_end_stay_counted(tmp_path: Path, coming_and_going: psutil.Process) -> None:
    root = coming_and_going
    use = used(tmp_path, lambda: [root, *root.children(recursive=True)])
    began, before = time.monotonic(), root.cpu_times()
    for step in range(1, 21):
        use.look({"step": step, "steps": 1000})
        time.sleep(0.1)
    wall, after = time.monotonic() - began, root.cpu_times()
    ours = sum(after[:4]) - sum(before[:4])
    section = use.section()
    expected = 100 * ours / (wall * (os.cpu_count() or 1))
    assert section["cpu_percent"] == pytest.approx(expected, rel=0.4)
    assert 0 < section["host_memory_gib"] < 8
    assert section["samples"] >= 15


def test_ranks_that_are_gone_raise_nothing(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    listed = [psutil.Process(child.pid)]
    use = used(tmp_path, lambda: listed)
    use.look({"step": 1, "steps": 9})
    child.wait()
    for step in range(2, 7):
        use.look({"step": step, "steps": 9})
    assert use.words() == []
    assert use.section()["cpu_percent"] is None


def test_every_figure_that_is_missing_has_a_reason(tmp_path: Path) -> None:
    names = {*FIGURES, "samples"}
    for section in (used(tmp_path, list).section(), Unseen().section()):
        assert {name for name in section if section[name] is None} == names
        assert set(section["reasons"]) == names
        assert all(section["reasons"].values())


class TestDevices:
    UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-cc33")

    @pytest.mark.parametrize(
        ("visible", "found"),
        [
            (None, [0, 1, 2]),
            ("2,0", [2, 0]),
            (" 1 , 2 ", [1, 2]),
            ("GPU-cc33", [2]),
            ("GPU-cc,GPU-aa", [2, 0]),
            ("0,-1,1", [0]),  # CUDA's rule: nothing from there on
            ("1,7,0", [1]),
        ],
    )
    def test_those_that_cuda_shows(self, visible: str | None, found: list[int]) -> None:
        assert in_use(self.UUIDS, visible, by_bus=True) == found

    @pytest.mark.parametrize("visible", ["", "-1", "GPU-a", "MIG-1"])
    def test_none_that_is_known(self, visible: str) -> None:
        with pytest.raises(ValueError, match=f"CUDA_VISIBLE_DEVICES={visible} names no device"):
            in_use(self.UUIDS, visible, by_bus=True)

    def test_numbers_in_an_order_that_nvml_does_not_know(self) -> None:
        with pytest.raises(ValueError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
            in_use(self.UUIDS, "0", by_bus=False)
        assert in_use(self.UUIDS, "GPU-cc33", by_bus=False) == [2]

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
    def test_no_nvml(self, tmp_path: Path) -> None:
        devices = Devices(1)
        assert devices.read() == {}
        assert set(devices.reasons) == set(GPU_FIGURES)
        section = used(tmp_path, list, devices=devices).section()
        assert section["gpu_percent"] is None
        assert "NVML can't be asked" in section["reasons"]["gpu_percent"]
        devices.close()

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_a_busy_device(self) -> None:
        devices, a = Devices(1), torch.rand(8192, 8192, device="cuda")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            (a @ a).sum().item()
        seen = devices.read()
        devices.close()
        assert seen["gpu_percent"] > 50
        assert seen["gpu_memory_gib"] > 0.25
        assert seen["power_w"] > 10


NAPS = """
import time
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head = nn.Linear(inputs, outputs)

    def forward(self, x):
        time.sleep(0.02)
        return self.head(x)
"""


class TestOfAJob:
    @pytest.fixture(scope="class")
    @classmethod
    def done(cls, module_command: Command) -> Done:
        (module_command.cwd / "mine.py").write_text(NAPS)
        words = [*TINY, "model._target_=mine.Model", "run.steps=120", "run.device=cpu"]
        done = module_command(*words)
        assert done.code == 0, done.err
        return done

    def test_the_record_has_what_a_cpu_can_show(self, done: Done) -> None:
        found = done.job()["utilisation"]
        assert 0 < found["cpu_percent"] < 100
        assert found["host_memory_gib"] > 0.1
        assert found["samples"] >= 1
        assert found["reasons"] == dict.fromkeys(GPU_FIGURES, "trained on the CPU")

    def test_it_is_a_line_of_the_explanation(self, done: Done) -> None:
        percent = done.job()["utilisation"]["cpu_percent"]
        assert f"  use        cpu {percent:.0f}%\n" in done.out

    def test_the_looks_are_kept_and_become_scalars(self, done: Done) -> None:
        directory = Path(done.job()["job"]["dir"])
        lines = (directory / "log" / "use.jsonl").read_text().splitlines()
        looks = [json.loads(line) for line in lines]
        events = EventAccumulator(str(directory / "tb"))
        events.Reload()
        found = events.Scalars("use/host_memory_gib")
        assert [e.step for e in found] == [one["step"] for one in looks if "host_memory_gib" in one]
        assert found
        shown = [one["cpu_percent"] for one in looks if "cpu_percent" in one]
        assert [e.value for e in events.Scalars("use/cpu_percent")] == pytest.approx(shown)
        assert "use/gpu_percent" not in events.Tags()["scalars"]
