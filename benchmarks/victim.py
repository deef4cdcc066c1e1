"""A job that is killed again and again, and what lies on its disk afterwards.

Looked at without the product's loader.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import xxhash

EVERY = 5
"""Steps between two saves."""

COUNTED = '''
import os
from torch.optim.lr_scheduler import ConstantLR

RANK = os.environ.get("RANK")
FILE = os.open("steps_done", os.O_RDWR | os.O_CREAT) if RANK == "0" else None


class Counted(ConstantLR):
    """A constant rate; rank 0 writes the number of steps done where it outlives a SIGKILL."""

    def step(self, epoch=None):
        super().step()
        if FILE is not None:
            os.pwrite(FILE, f"{self.last_epoch:10d}".encode(), 0)
'''
JOB = [
    "model=mlp",
    "model.hidden=[1024,512]",
    "data=digits",
    "data.flatten=true",
    "optimizer=adamw",
    "scheduler=constant",
    "scheduler._target_=mine.Counted",
    "measure=quick",
    "measure.window_s=0",
    "run.eval_batches=1",
    "run.device=cpu",
    "launch.threads_per_rank=1",
    f"checkpoint.every_steps={EVERY}",
    "hydra.run.dir=job",
]


@dataclass
class Victim:
    """`newest`: the newest committed step when it was last looked at, 0: none. `lost`: steps, at
    each kill after which it was known how many were done. `loads`: starts that said where they go
    on. `wrong`: sentences, none where all is well."""

    folder: Path
    strategy: str
    checkpoint: str
    steps: int
    kills: int = 0
    in_staging: int = 0
    lost: list[int] = field(default_factory=list)
    loads: int = 0
    wrong: list[str] = field(default_factory=list)
    newest: int = 0
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def shelf(self) -> Path:
        return self.folder / "job" / "checkpoint"

    @property
    def words(self) -> list[str]:
        nproc = [] if self.strategy == "single" else ["launch.nproc=2"]
        options = [f"strategy={self.strategy}", f"checkpoint={self.checkpoint}"]
        return [*JOB, *options, *nproc, f"run.steps={self.steps}"]

    @property
    def most_lost(self) -> int:
        """Steps. A save that all wait for is committed before the next step begins: when d steps
        are done, those of all saves due before d are. In the background a save is committed at
        the latest when the next one begins: one interval more."""
        return EVERY * (2 if self.checkpoint == "async" else 1)

    def blame(self, what: str) -> None:
        self.wrong.append(f"{self.strategy} {self.checkpoint}, kill {self.kills}: {what}")

    def start(self) -> subprocess.Popen[bytes]:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "mine.py").write_text(COUNTED)
        (self.folder / "steps_done").unlink(missing_ok=True)
        with (self.folder / "said").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "paceline", *self.words],
                cwd=self.folder,
                env={**os.environ, "PACELINE_CRASHES": self.mark},
                stdout=said,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Everything that it started, whoever its parent is now."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        while left := [p for p in psutil.process_iter() if self._marked(p)]:
            for one in left:
                one.kill()
            time.sleep(0.01)

    def _marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("PACELINE_CRASHES") == self.mark
        except psutil.Error:
            return False

    def steps_done(self) -> int:
        """Of this start; 0: it has not trained yet."""
        try:
            return int((self.folder / "steps_done").read_text() or 0)
        except FileNotFoundError:
            return 0

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")


def look(victim: Victim) -> None:
    """What is on the disk after a kill."""
    steps = []
    for place in sorted(victim.shelf.glob("step_*")):
        steps.append(int(place.name.removeprefix("step_")))
        for wrong in torn(place):
            victim.blame(wrong)
    newest, done = max(steps, default=0), victim.steps_done()
    if newest < victim.newest:
        victim.blame(f"step {victim.newest} was committed, the newest is {newest}")
    victim.newest = newest
    victim.in_staging += any((victim.shelf / ".staging").glob("step_*"))
    if done:
        victim.lost.append(max(0, done - newest))
        if victim.lost[-1] > victim.most_lost:
            victim.blame(f"{done} steps were done, the newest committed is {newest}")
    for name in ("quarantine", "superseded"):
        if (victim.shelf / name).exists():
            victim.blame(f"something was moved to {name}")


def torn(place: Path) -> list[str]:
    """What is wrong with a committed checkpoint, by its manifest."""
    try:
        files = json.loads((place / "manifest.json").read_text())["files"]
        bad = [
            f"{place / name} is not what its manifest says"
            for name, written in files.items()
            if found((place / name).read_bytes()) != written
        ]
    except (OSError, ValueError, KeyError) as error:
        return [f"{place}: {error!r}"]
    there = {path.name for path in place.iterdir()} - {"manifest.json"}
    return bad + [f"{place / name} is in no manifest" for name in sorted(there - set(files))]


def found(data: bytes) -> dict[str, object]:
    return {"size": len(data), "xxh3": xxhash.xxh3_64_hexdigest(data)}


def inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None
