"""A warm paceline: imports everything once, then runs each command line in a fork of itself.

One JSON object a line in, `{argv, cwd, out, err}`, and one out, `{code, left}`: the exit code and
the command lines of processes that are still there.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

import psutil

sys.path.pop(0)  # this folder: a console script has none
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a command leaves behind comes to us
    import torch  # noqa: F401

    import paceline.controller.job
    from paceline.__main__ import main as paceline

    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(run(paceline, asked))
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "left": left()}), flush=True)


def run(paceline: Any, asked: dict[str, Any]) -> int:
    os.chdir(asked["cwd"])
    for descriptor, path in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), descriptor)
    sys.argv = ["paceline", *asked["argv"]]
    try:
        code = paceline()
    except SystemExit as end:
        code = end.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0)


def left() -> list[list[str]]:
    """Ended ones are collected: they only wait for a parent."""
    children = psutil.Process().children(recursive=True)
    time.sleep(0.05 if children else 0)
    return [c.cmdline() for c in children if c.is_running() and c.status() != "zombie"]


if __name__ == "__main__":
    main()
