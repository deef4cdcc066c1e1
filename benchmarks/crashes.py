"""Jobs killed at random around their saves: is what was committed ever lost, or a torn file read?

    python -m benchmarks.crashes [--kills N] [--seed N] [--json FILE]

Real `paceline` jobs, each combination of strategy and checkpoint in turns, each in one directory.
A job is killed as a whole (SIGKILL to the controller, the forkserver, the ranks and all that they
started) at a random moment: while a save is written, committed, about to come, or while the job
starts. The same command then goes on, and is the next victim. After each kill, without the
product's loader:

- every directory with a step's name is whole: the bytes that its manifest tells, by their hash;
- the newest of them is no older than the newest before, and no more steps are lost than `most_lost`
  says of the steps that were done, which the scheduler counted in a file;
- the next start says "resumed from step N" of just that one, and nothing of damage or a traceback.

In the end each job runs to its last step: losses and final state are those of an unbroken run, to
the bit. Printed: a table by strategy and checkpoint. Exit code 1 if anything of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.victim import EVERY, Victim, inode, look
from paceline.checkpoint.reading import read_whole
from paceline.checkpoint.state import leaves

STEPS_A_KILL = 25
"""More than a job goes forward before it is killed again."""

START_LIMIT_S, SAVE_LIMIT_S, END_LIMIT_S = 90, 90, 300
MOMENTS = ("staging", "manifest", "about", "starting")
OFTEN = (50, 20, 20, 10)
"""The moments of a kill, and how often of a hundred: a place is being written; its manifest is
there, so that it is about to be committed; the step before a save; any moment of a start."""

CASES = [
    (strategy, checkpoint)
    for checkpoint in ("sync", "dcp", "async")
    for strategy in ("ddp", "ddp", "ddp", "single", "fsdp")
]
"""Two ranks of ddp mostly: each case once a round."""


def campaign(
    kills: int, seed: int, folder: Path, cases: list[tuple[str, str]] = CASES
) -> list[Victim]:
    """Kill so many times, spread over the cases in turns; then let each job end and compare it."""
    draw = random.Random(seed)
    shares: dict[tuple[str, str], int] = {}
    for number in range(kills):
        case = cases[number % len(cases)]
        shares[case] = shares.get(case, 0) + 1
    unbroken: dict[tuple[str, int], Path] = {}
    steps = STEPS_A_KILL * (max(shares.values()) + 1)
    victims = []
    for (strategy, checkpoint), share in shares.items():
        victim = Victim(folder / f"{strategy}-{checkpoint}", strategy, checkpoint, steps)
        for _ in range(share):
            if not kill_once(victim, draw):
                break
        finish(victim)
        if (strategy, steps) not in unbroken:
            whole = Victim(folder / f"{strategy}-whole", strategy, "sync", steps)
            finish(whole)
            victim.wrong += whole.wrong
            unbroken[strategy, steps] = whole.folder
        if not victim.wrong:
            compare(victim, unbroken[strategy, steps])
        victims.append(victim)
        print(row(victim), *victim.wrong, sep="\n", flush=True)
    return victims


def kill_once(victim: Victim, draw: random.Random) -> bool:
    """Start, kill at a random moment, look at what is left. False: no point in going on."""
    log = victim.folder / "job" / "log" / "rank0.log"
    before = inode(log)
    process = victim.start()
    moment = draw.choices(MOMENTS, OFTEN)[0]
    try:
        if moment == "starting":
            time.sleep(draw.uniform(0, 4))
        else:
            loaded(victim, process, log, before)
            wait_for(moment, victim, process, draw)
    except TimeoutError as error:
        victim.blame(f"{error}\n{victim.said()[-2000:]}")
    finally:
        ended = process.poll()
        victim.kill(process)
    if ended is not None:
        victim.blame(f"it ended by itself, code {ended}:\n{victim.said()[-2000:]}")
        return False
    victim.kills += 1
    look(victim)
    return not victim.wrong


def loaded(victim: Victim, process: subprocess.Popen[bytes], log: Path, before: int | None) -> None:
    """Wait until it has said where it goes on, and hold that to what the disk said."""
    line = re.compile(r"resumed from step (\d+)|fresh start")
    found: list[re.Match[str]] = []

    def spoken() -> bool:
        if inode(log) not in (None, before):
            found[:] = line.finditer(log.read_text(errors="replace"))
        return bool(found)

    until(spoken, process, START_LIMIT_S, "it does not load")
    if not found:
        return
    victim.loads += 1
    went_on = int(found[0][1] or 0)
    if went_on != victim.newest:
        victim.blame(f"went on from step {went_on}; the newest committed is {victim.newest}")
    text = log.read_text(errors="replace")
    for bad in ("Traceback", "WARNING", "ERROR"):
        if bad in text:
            victim.blame(f"{bad} while it loads:\n{text[-2000:]}")


def wait_for(
    moment: str, victim: Victim, process: subprocess.Popen[bytes], draw: random.Random
) -> None:
    """Until that moment of one of the next saves, and a random while in it."""
    at = victim.newest + EVERY * draw.randint(1, 2)
    place = victim.shelf / ".staging"

    def came() -> bool:
        if victim.steps_done() < at - 1:
            return False
        if moment == "about":
            return True
        if victim.steps_done() >= at + 2 * EVERY:
            return True  # that save was over before we looked
        try:
            places = [place / name for name in os.listdir(place)]
        except FileNotFoundError:
            return False
        return any(moment == "staging" or (one / "manifest.json").exists() for one in places)

    until(came, process, SAVE_LIMIT_S, f"no save at step {at}")
    time.sleep(draw.uniform(0, {"staging": 0.05, "manifest": 0.002, "about": 0.1}[moment]))


def until(
    holds: Callable[[], bool], process: subprocess.Popen[bytes], limit_s: float, what: str
) -> None:
    """Poll, as long as the job runs."""
    deadline = time.monotonic() + limit_s
    while process.poll() is None and not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} after {limit_s} s")
        time.sleep(0.001)


def finish(victim: Victim) -> None:
    """Let it run to its end."""
    log = victim.folder / "job" / "log" / "rank0.log"
    before = inode(log)
    process = victim.start()
    try:
        loaded(victim, process, log, before)
        code = process.wait(END_LIMIT_S)
        if code:
            victim.blame(f"it ended with code {code}:\n{victim.said()[-2000:]}")
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        victim.blame(f"it does not end: {error}")
    finally:
        victim.kill(process)


def compare(victim: Victim, whole: Path) -> None:
    """With the unbroken run: all of the state, and the losses and gradient norms of all steps."""
    name = f"job/checkpoint/step_{victim.steps:08d}"
    states, records = [], []
    for folder in (victim.folder, whole):
        try:
            states.append(read_whole(folder / name))
            records.append(json.loads((folder / "job/result.json").read_text())["numerics"])
        except Exception as error:
            victim.blame(f"{folder} has no end: {error}")
            return
    for key in ("loss", "grad_norm", "final_loss", "eval_loss"):
        if records[0][key] != records[1][key]:
            victim.blame(f"{key} is not that of an unbroken run")
    for part, mine in states[0].items():
        if not same(mine, states[1][part]):
            victim.blame(f"the state's {part} is not that of an unbroken run")


def same(one: Any, other: Any) -> bool:
    mine, theirs = dict(leaves(one)), dict(leaves(other))
    return mine.keys() == theirs.keys() and all(
        torch.equal(a, theirs[where]) if isinstance(a, torch.Tensor) else a == theirs[where]
        for where, a in mine.items()
    )


HEAD = "| strategy | checkpoint | kills | in staging | loads | most steps lost | allowed | wrong |"


def row(victim: Victim) -> str:
    most = max(victim.lost, default=0)
    cells = [victim.strategy, victim.checkpoint, victim.kills, victim.in_staging, victim.loads]
    return f"| {' | '.join(map(str, [*cells, most, victim.most_lost, len(victim.wrong)]))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="jobs killed at random around their saves")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    if args.kills < 1:
        parser.error(f"--kills {args.kills}: at least 1")
    print(HEAD, f"|{'---|' * HEAD.count(' | ')}---|", sep="\n", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        victims = campaign(args.kills, args.seed, Path(place))
    kills, hits = (sum(getattr(v, k) for v in victims) for k in ("kills", "in_staging"))
    wrong = [said for victim in victims for said in victim.wrong]
    print(
        f"\n{kills} kills, {hits} while a save was in staging, {len(wrong)} wrong, "
        f"{time.monotonic() - start:.0f} s"
    )
    if args.json:
        keys = ("strategy", "checkpoint", "kills", "in_staging", "lost", "loads", "wrong")
        rows = [{key: getattr(victim, key) for key in keys} for victim in victims]
        args.json.write_text(json.dumps({"rows": rows, "kills": kills}, indent=1) + "\n")
    sys.exit(1 if wrong or kills < args.kills else 0)


if __name__ == "__main__":
    main()
