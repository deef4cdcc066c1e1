"""What is set once in a rank's process, seen from outside: in fresh processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from paceline.rank import process
torch.set_num_threads(1)
if sys.argv[1] == "steady":
    assert process.keep_freed_memory()
def activations():
    return [torch.ones(1_000_000) for _ in range(50)]
held = activations()
del held
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
held = activations()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(host_memory: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, host_memory], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's mallopt")
def test_steady_host_memory_faults_far_less() -> None:
    assert faults("steady") < faults("system") / 3


ORPHAN = """
import multiprocessing, os, signal, sys, time
from paceline.rank import process
def child(queue):
    process.die_with_parent()
    queue.put(os.getpid())
    time.sleep(60)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    context.Process(target=child, args=(queue,)).start()
    print(queue.get(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_child_dies_with_its_killed_parent() -> None:
    import time

    import psutil

    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == -9
    deadline = time.monotonic() + 10
    child = int(done.stdout)
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        if psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    assert not psutil.pid_exists(child)
