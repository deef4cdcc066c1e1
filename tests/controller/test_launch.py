"""Starting the process that ranks are forked from."""

from __future__ import annotations

import subprocess
import sys

ONE = """
import multiprocessing.forkserver, os, signal
from paceline.controller import launch

heard = []
for number in launch.FORWARDED:
    signal.signal(number, lambda number, frame: heard.append(number))
server = multiprocessing.forkserver._forkserver
start = server.ensure_running

def interrupted():
    for number in launch.FORWARDED:
        os.kill(os.getpid(), number)
    start()

server.ensure_running = interrupted
launch.ensure_forkserver()
launch.stop_forkserver()
assert sorted(heard) == sorted(launch.FORWARDED), heard
assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "signals are still held back"
"""


def test_a_signal_that_comes_while_it_starts_is_heard_after() -> None:
    done = subprocess.run([sys.executable, "-c", ONE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
