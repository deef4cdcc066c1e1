"""Starting the process that ranks are forked from."""

from __future__ import annotations

import subprocess
import sys

ONE = """
import multiprocessing.forkserver, os, signal, threading
from paceline.controller import launch
from paceline.types import STOPS

heard = []
for number in STOPS:
    signal.signal(number, lambda number, frame: heard.append(number))
threading.Thread(target=threading.Event().wait, daemon=True).start()  # as a library's own thread
server = multiprocessing.forkserver._forkserver
start = server.ensure_running

def interrupted():
    for number in STOPS:
        os.kill(os.getpid(), number)
    start()

server.ensure_running = interrupted
launch.ensure_forkserver()
launch.stop_forkserver()
assert sorted(heard) == sorted(STOPS), heard
assert not signal.pthread_sigmask(signal.SIG_BLOCK, []), "signals are still held back"
"""


def test_a_signal_that_comes_while_it_starts_is_heard_after() -> None:
    done = subprocess.run([sys.executable, "-c", ONE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
