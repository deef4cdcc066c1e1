"""What a drill finds: a restored run held to the files and to the uninterrupted training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from paceline.compare import spread
from paceline.compare.numerics import FIRST_RTOL, FIRST_STEPS, FULL, LAST_RTOL, SMALLEST
from paceline.controller.drilled import Ran
from paceline.record.schema import RAN

PASSED, PARTIAL, FAILED = "passed", "partial", "failed"
STYLES = {PASSED: "green", PARTIAL: "yellow", FAILED: "red"}
SHOWN = 5
"""Of a list of names."""

SAME_MACHINE = ("torch", "cpu")
"""Where these differ, the same program may round otherwise."""

WORDS = {"rng": "random numbers of the ranks", "comm_hook": "state of the communication hook"}
CURVES = {"loss": "loss", "grad_norm": "gradient norm"}

Entry = dict[str, Any]


@dataclass(frozen=True)
class Base:
    """The uninterrupted training: `record`, and what it is called in a sentence."""

    record: dict[str, Any]
    name: str


def entry(run: Ran, source: str, files: dict[str, str], base: Base | None, ranks: int) -> Entry:
    """A run's part of the certificate. `files`: path -> digest of the checkpoint that it restored,
    as a plain reader finds it, `source` its name; `ranks`: of the job, which saved it."""
    found: Entry = {
        "world_size": run.ranks,
        "strategy": run.job.requested["strategy"],
        "restored": source,
        "steps": list(run.steps),
        "digests": None,
        "compared_with": None,
        "losses": None,
        "grad_norms": None,
        "samples_digest": run.record["numerics"]["samples_digest"],
        "samples_equal": None,
        "reasons": [],
        "verdict": PASSED,
    }
    if run.digests is not None:
        found["digests"] = compared = _digests(run.digests, files, run.ranks == ranks)
        if compared["differing"]:
            _fail(found, f"restored otherwise than in the files: {_listed(compared['differing'])}")
    status = run.record["status"]
    if status["state"] not in RAN:
        said = str(status["message"] or status["state"]).splitlines()[0]
        _fail(found, f"did not come to step {run.steps[1]}: {said}")
        return found
    found["reasons"] += anew(run, ranks)
    if base is not None:
        _hold(found, run, base, ranks)
    return found


def anew(run: Ran, ranks: int) -> list[str]:
    """What this run had to start anew, a sentence each."""
    restored = run.record["checkpoint"]["restored"]
    because = "" if run.ranks == ranks else f": {ranks} saved, {run.ranks} go on"
    parts = [*restored["rederived"], *restored["reset"]]
    return [f"{WORDS.get(part, part)} anew{because}" for part in parts]


def settle_samples(entries: list[Entry]) -> None:
    """Runs over the same steps must have used the same samples."""
    for found in entries:
        others = [e for e in entries if e is not found and e["steps"] == found["steps"]]
        known = [e["samples_digest"] for e in others if e["samples_digest"] is not None]
        if found["samples_digest"] is None or not known:
            continue
        found["samples_equal"] = set(known) == {found["samples_digest"]}
        if not found["samples_equal"]:
            first, last = found["steps"]
            _fail(found, f"other samples than another run in steps {first} to {last - 1}")


def verdict_of(entries: list[Entry], reasons: list[str]) -> str:
    """Of a whole drill. `reasons`: what could not be run at all."""
    said = {found["verdict"] for found in entries}
    if FAILED in said:
        return FAILED
    return PARTIAL if reasons or PARTIAL in said else PASSED


def bits_demanded(run: Ran, base: Base, ranks: int) -> bool:
    """The same program on the same kind of machine, with the same state: nothing may differ."""
    mine, theirs = run.record["environment"], base.record["environment"]
    asked = base.record["requested"]
    return (
        run.ranks == ranks == asked["world_size"]
        and run.job.requested["device"] == "cpu"
        and run.job.requested["strategy"] == asked["strategy"]
        and asked["nnodes"] == 1
        and all(mine[key] == theirs[key] for key in SAME_MACHINE)
        and not anew(run, ranks)
    )


def _digests(restored: dict[str, str], files: dict[str, str], same_world: bool) -> dict[str, Any]:
    """What belongs to single ranks is compared where as many go on as saved it."""
    paths = [p for p in {**restored, **files} if same_world or not p.startswith("ranks.")]
    differing = [p for p in paths if restored.get(p) != files.get(p)]
    return {
        "equal": len(paths) - len(differing),
        "total": len(paths),
        "differing": differing,
    }


def _hold(found: Entry, run: Ran, base: Base, ranks: int) -> None:
    """Losses and gradient norms against the uninterrupted training."""
    found["compared_with"] = base.name
    why = _incomparable(run, base, ranks)
    if why:
        found["reasons"].append(f"losses are not compared: {why}")
        found["verdict"] = PARTIAL if found["verdict"] == PASSED else found["verdict"]
        return
    exact = bits_demanded(run, base, ranks)
    for name, key in (("loss", "losses"), ("grad_norm", "grad_norms")):
        found[key], problem = _curves(run, base, name, exact)
        if problem:
            _fail(found, problem)


def _incomparable(run: Ran, base: Base, ranks: int) -> str | None:
    if run.record["numerics"]["samples_digest"] is None:
        return "the data source does its own sampling, so that no resume is exact"
    if run.ranks == ranks:
        return None
    coupled = {*run.record["numerics"]["coupled_by"], *base.record["numerics"]["coupled_by"]}
    if coupled:
        listed = ", ".join(sorted(coupled))
        return f"the model has {listed}, whose results depend on how ranks share the batch"
    if "comm_hook" in run.record["checkpoint"]["restored"]["reset"]:
        return "the communication hook had state, which other ranks can't go on with"
    return None


def _curves(
    run: Ran, base: Base, name: str, exact: bool
) -> tuple[dict[str, Any] | None, str | None]:
    """How far the run's steps are off, and what is wrong with that. (None, None) where the job
    doesn't record it."""
    first, last = run.steps
    mine = spread.curve(run.record, name)[first:last]
    theirs = spread.curve(base.record, name)[first:last]
    if name == "grad_norm" and not len(mine) and not len(theirs):
        return None, None
    if len(mine) != last - first or len(theirs) != last - first:
        return None, f"{CURVES[name]}: {len(mine)} and {len(theirs)} of {last - first} steps known"
    low = {spread.computes(run.record), spread.computes(base.record)} - FULL
    precision = "low" if low else "full"
    allowed = np.full(last - first, LAST_RTOL[precision])
    allowed[:FIRST_STEPS] = FIRST_RTOL[precision]
    with np.errstate(invalid="ignore"):
        off = np.abs(mine - theirs) / np.maximum(np.abs(theirs), SMALLEST)
    equal = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    off = np.where(equal, 0.0, np.nan_to_num(off, nan=np.inf))
    bad = np.flatnonzero(~equal if exact else off > allowed)
    section = {
        "bit_equal": bool(equal.all()),
        "max_rel_diff": float(off.max()),
        "tolerance": 0.0 if exact else float(allowed.max()),
    }
    if not len(bad):
        return section, None
    step = int(bad[0])
    may = "the same bits are demanded" if exact else f"{allowed[step]:.0e} is allowed"
    return section, (
        f"the {CURVES[name]} of step {first + step} is {mine[step]:.9g}, {theirs[step]:.9g} in "
        f"{base.name}: {off[step]:.1e} off, {may}"
    )


def _fail(found: Entry, reason: str) -> None:
    found["verdict"] = FAILED
    found["reasons"].append(reason)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


# ---------------------------------------------------------------- for a person


def show(made: dict[str, Any], path: Path, console: Console) -> None:
    """The certificate on the terminal."""
    head = Text(f"drill of {made['job']}", "bold")
    head.append(f"  {made['verdict']}", STYLES[made["verdict"]])
    console.print(head, soft_wrap=True)
    lines: list[tuple[str, str]] = []
    if made["checkpoint"] is not None:
        mb = made["verified_bytes"] / 1e6
        facts = f"{made['format']}, saved by {_ranks(made['saved_by'])}, {mb:.3g} MB verified"
        lines.append(("checkpoint", f"{made['checkpoint']}: {facts}"))
    for found in made["runs"]:
        label = f"{_ranks(found['world_size'])} {found['strategy']}"
        said = [_state(found), _steps(found), *found["reasons"]]
        lines += [(label if i == 0 else "", text) for i, text in enumerate(t for t in said if t)]
    lines += [("damaged" if i == 0 else "", text) for i, text in enumerate(made["damaged"])]
    other = [text for text in made["reasons"] if text not in made["damaged"]]
    lines += [("not run" if i == 0 else "", text) for i, text in enumerate(other)]
    if made["logs"] is not None:
        lines.append(("logs", made["logs"]))
    lines.append(("certificate", str(path)))
    width = max(len(name) for name, _ in lines) + 2
    for name, text in lines:
        console.print(Text(f"  {name:<{width}}{text}"), soft_wrap=True)


def _state(found: Entry) -> str:
    compared = found["digests"]
    if compared is None:
        return f"{found['restored']}: not restored"
    how = "equal bit for bit" if not compared["differing"] else "equal"
    counted = f"{compared['equal']} of {compared['total']} parts of the state {how}"
    return f"{found['restored']}: {counted}"


def _steps(found: Entry) -> str:
    first, last = found["steps"]
    parts = [
        _curve(words, found[key])
        for words, key in (("losses", "losses"), ("gradient norms", "grad_norms"))
        if found[key] is not None
    ]
    if found["samples_equal"]:
        parts.append("the same samples")
    if not parts:
        return ""
    against = f", against {found['compared_with']}" if found["compared_with"] else ""
    return f"steps {first} to {last - 1}{against}: {', '.join(parts)}"


def _curve(words: str, section: dict[str, Any]) -> str:
    if section["bit_equal"]:
        return f"{words} equal bit for bit"
    allowed = f" ({section['tolerance']:.0e} allowed)" if section["tolerance"] else ""
    return f"{words} {section['max_rel_diff']:.1e} off{allowed}"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
