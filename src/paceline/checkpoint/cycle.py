"""What all ways of saving share: when, from staged to committed, on whom it falls, and loading."""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.checkpoint import shelf as shelves
from paceline.checkpoint.cadence import Cadence
from paceline.checkpoint.reading import Found, newest_good, read_into
from paceline.checkpoint.resident import Resident
from paceline.checkpoint.shelf import Manifest, Shelf, step_of
from paceline.checkpoint.state import restore, tree_of
from paceline.checkpoint.together import gather, together
from paceline.checkpoint.writer import NOTES, take_notes
from paceline.types import CheckpointError, Context, TrainState

OWN_WORDS = ("auto", "required", "off")


class Cycle:
    """`format`: as in Manifest. `group`: the process group whose collectives follow a write; None:
    the job's own."""

    def __init__(self, settings: Cadence, context: Context, format: str, group: Any = None) -> None:
        self.settings, self.world, self.group = settings, context.world, group
        self.shelf = Shelf(context.directory / "checkpoint")
        self.saves: list[dict[str, Any]] = []
        self.resident = Resident()
        self._context, self._format = context, format
        self._loaded: dict[str, Any] = {"resumed_from": None, "resharded": None, "restored": None}

    def due(self, step: int, now: bool) -> bool:
        """Is this step to be saved, and not saved already?"""
        asked = now or step % self.settings.every_steps == 0
        done = self.saves and self.saves[-1]["step"] == step and self.saves[-1]["state"] != "failed"
        return asked and not done

    def begin(self, step: int) -> dict[str, Any]:
        """The record of a save that starts now."""
        save = {
            "step": step,
            "blocked_s": 0.0,
            "durable_s": None,
            "bytes": None,
            "state": "staging",
        }
        self.saves.append(save)
        return save

    def stage(self, state: TrainState, step: int) -> tuple[dict[str, Any], Path]:
        """What is to be saved, and an empty place that all ranks may write into: a collective."""
        tree: dict[str, Any] = {}

        def prepare() -> None:
            if self.world.rank == 0:
                self.shelf.stage(step)
            tree.update(tree_of(state, self.world))

        together(self.world, self.group, prepare)
        return tree, self.shelf.place(step)

    def complete(self, save: dict[str, Any], began: float) -> None:
        """All ranks have written: verify, commit, delete what isn't kept. A collective."""
        world, place = self.world, self.shelf.place(save["step"])
        save["state"] = "written"

        def verify() -> dict[str, Any]:
            mine = take_notes(place, world.rank)
            manifest = self._manifest(save["step"], mine)
            wrong = shelves.problems(place, manifest, mine, self.settings.verify)
            if wrong:
                raise CheckpointError("; ".join(wrong))
            return mine

        written = together(world, self.group, verify)
        save["state"] = "verified"
        files = {name: file for mine in written for name, file in mine.items()}
        manifest = self._manifest(save["step"], files)

        def commit() -> None:
            if world.rank:
                return
            missing = shelves.problems(place, manifest, files, contents=False)
            if missing:
                raise CheckpointError(
                    f"{missing[0]}; rank 0 doesn't see what others wrote: put the job's directory "
                    "on a file system that all nodes share"
                )
            shutil.rmtree(place / NOTES)
            self.shelf.commit(manifest)

        together(world, self.group, commit)
        save |= {"state": "committed", "bytes": manifest.size}
        save["durable_s"] = time.perf_counter() - began
        if world.rank == 0:
            self._retain()

    def _retain(self) -> None:
        try:
            self.shelf.retain(self.settings.keep_last, self.settings.keep_every)
        except OSError as error:  # what was to be saved is
            print(f"WARNING an old checkpoint could not be deleted: {error}", flush=True)

    def attempt(self, save: dict[str, Any], work: Callable[[], None]) -> None:
        """Do a part of a save; a failure, which all ranks see alike, stops the job or is said."""
        try:
            work()
        except CheckpointError as error:
            self.failed(save, error)

    def discard(self, save: dict[str, Any]) -> None:
        """All ranks know that it failed: what was written of it must not fill the disk."""
        if self.world.rank == 0:
            shutil.rmtree(self.shelf.place(save["step"]), ignore_errors=True)

    def failed(self, save: dict[str, Any], error: CheckpointError) -> None:
        self.discard(save)
        save |= {"state": "failed", "message": str(error)}
        if self.settings.on_failure == "stop":
            raise error
        print(f"WARNING the checkpoint of step {save['step']} failed: {error}", flush=True)

    def load(self, state: TrainState) -> int:
        """Restore the newest good checkpoint; the step to go on from. A collective."""
        found = self._find()
        if found is None:
            self._supersede(0)
            return 0
        mine, theirs = self._context.identity, found.manifest.identity
        if mine.get("work_hash") != theirs.get("work_hash"):
            other = ", ".join(shelves.differing(mine, theirs)[:5]) or "what is trained"
            raise CheckpointError(
                f"{found.path} is of another training: {other} differ; set them as they were, or "
                "start from step 0 with checkpoint.resume=off"
            )
        saved_by = found.manifest.world["world_size"]
        another = saved_by != self.world.world_size
        if another and state.data.sampling == "own":
            raise CheckpointError(
                f"{found.path} was saved by {saved_by} ranks, this job has "
                f"{self.world.world_size}: the data source does its own sampling "
                "(sampling=own), so that its position can't be shared out anew; use "
                f"{saved_by} ranks"
            )
        tree = read_into(state, found, self.world)
        if another:
            tree["ranks"] = {}
        report = restore(state, tree, self.world, self._context.run.seed)
        self._check_strict(report, found)
        self._loaded = {
            "resumed_from": state.step,
            "resharded": {"from": found.manifest.world, "to": self._me()} if another else None,
            "restored": report | {"path": str(found.path), "bad": list(found.bad.values())},
        }
        self._supersede(state.step)
        print(_said(found, report, another, self.world.world_size), flush=True)
        return state.step

    def report(self) -> dict[str, Any]:
        known = [save for save in self.saves if save["state"] != "staging"]
        return {"saves": known, "host_peak_gib": self.resident.peak_gib, **self._loaded}

    def _find(self) -> Found | None:
        asked = self.settings.resume
        if asked == "off" and not _started_again():
            print("checkpoint.resume=off: fresh start", flush=True)
            return None
        paths = self.shelf.committed()
        elsewhere = not paths and asked not in OWN_WORDS
        if elsewhere:
            paths = shelves.find(Path(asked))
        found = newest_good(paths, self.world, self.settings.verify)
        if found is None:
            if asked == "required":
                raise CheckpointError(
                    f"checkpoint.resume=required, but {self.shelf.directory} holds no committed "
                    "checkpoint; use checkpoint.resume=auto to start fresh"
                )
            print("no checkpoint: fresh start", flush=True)
            return None
        for path, reason in found.bad.items():
            print(f"WARNING {reason}; going on from {found.path.name}", flush=True)
            if self.world.rank == 0 and not elsewhere:
                self.shelf.quarantine(path, reason)
        return found

    def _supersede(self, after: int) -> None:
        gather(None, self.world)  # nobody is still looking for what is moved now
        if self.world.rank == 0 and self.shelf.directory.exists():
            for path in self.shelf.supersede(after):
                print(f"WARNING {path.name} was set aside: training goes on from step {after}")

    def _check_strict(self, report: dict[str, Any], found: Found) -> None:
        anew = report["rederived"] + report["reset"]
        if anew and self.settings.strict:
            raise CheckpointError(
                f"{found.path} can't be gone on with exactly: {', '.join(anew)} would start anew "
                "(another number of ranks, or another precision or hook, than saved it); "
                "checkpoint.strict=false allows it"
            )

    def _manifest(self, step: int, files: dict[str, Any]) -> Manifest:
        saved_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        identity = dict(self._context.identity)
        return Manifest(step, self._format, saved_at, self._me(), identity, files)

    def _me(self) -> dict[str, Any]:
        return {"world_size": self.world.world_size}


def _started_again() -> bool:
    """After a failure, by the same controller: then what lies there is this run's own."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _said(found: Found, report: dict[str, Any], resharded: bool, ranks: int) -> str:
    words = [f"resumed from step {step_of(found.path)}"]
    if resharded:
        words.append(f"saved by {found.manifest.world['world_size']} ranks, now {ranks}")
    words += [f"{what} anew" for what in report["rederived"]]
    words += [f"{what} reset" for what in report["reset"]]
    return "; ".join(words)
