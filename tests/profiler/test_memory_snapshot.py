"""profiler=memory_snapshot: the history of a CUDA allocator."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from paceline.types import ConfigError
from tests.conftest import Command
from tests.controller.test_plan import planned_job

WORDS = ["profiler=memory_snapshot", "profiler.wait=10"]

GREEDY = '''
"""A model that asks for more memory than any device has, in its twentieth forward."""

import torch
from torch import nn


class Greedy(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.head, self.calls = nn.Linear(inputs, outputs), 0

    def forward(self, x):
        self.calls += 1
        if self.calls >= 20:
            torch.empty(2**45, device=x.device)
        return self.head(x)
'''


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_cpu_has_no_such_history(tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned_job(tmp_path, *WORDS, f"run.device={device}")
    assert str(error.value).strip() == (
        "profiler=memory_snapshot: it is the history of the allocator on a CUDA device, there "
        "would be none; on a CPU use profiler=schedule profiler.profile_memory=true"
    )


def test_a_history_begins_before_the_run_ends(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        planned_job(tmp_path, "profiler=memory_snapshot", "profiler.wait=30", "run.steps=30")
    said = "profiler.wait=30: the history would begin after the last of run.steps=30; lower"
    assert said in str(error.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnADevice:
    def test_the_steps_after_the_wait_are_in_it(self, command: Command, tiny: list[str]) -> None:
        done = command(*tiny, *WORDS, "profiler.max_entries=1000", timeout_s=300)
        assert done.code == 0, done.err
        record = done.job()
        assert record["profiler"]["snapshots"] == ["trace/rank0.memory.pickle"]
        assert record["throughput"]["steps_excluded"]["profiled"] == 20
        path = Path(record["job"]["dir"]) / "trace/rank0.memory.pickle"
        snapshot = pickle.loads(path.read_bytes())
        (entries,) = [trace for trace in snapshot["device_traces"] if trace]
        assert 0 < len(entries) <= 1000
        assert any(entry["frames"] for entry in entries)

    def test_running_out_of_memory_leaves_one(self, command: Command, tiny: list[str]) -> None:
        (command.cwd / "mine.py").write_text(GREEDY)
        done = command(*tiny, *WORDS, "model._target_=mine.Greedy", timeout_s=300)
        assert done.code == 1
        assert done.job()["status"]["kind"] == "oom"
        (path,) = done.cwd.glob("outputs/jobs/*/trace/rank0.memory.pickle")
        actions = {e["action"] for t in pickle.loads(path.read_bytes())["device_traces"] for e in t}
        assert "oom" in actions
        assert "open it at pytorch.org/memory_viz" in done.out
