"""`python -m tests.planted.advised`: is advice worth what it says? Diagnoses jobs with a known
bottleneck, types the sweep that each first piece of predicted advice names, and compares."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import Any

from paceline.record import predictions
from tests.planted.cases import Case, case
from tests.planted.kit import PROGRAM, command, network

KINDS = (
    "slow_dataset",
    "too_few_workers",
    "decode_bound",
    "throttled_link",
    "python_overhead",
    "many_parameters",
    "new_shapes",
    "blocking_checkpoint",
    "host_sync",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted.advised", description=__doc__)
    parser.add_argument("--seeds", default="5-7", help="as 0-4 or 7 (default: %(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of: %(default)s")
    parser.add_argument("--keep", type=Path, help="copy the file of predictions there")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    folder = Path(tempfile.mkdtemp(prefix="advised-"))
    kept = folder / "advice.jsonl"
    try:
        for seed in range(int(first), int(last or first) + 1):
            for kind in asked.kinds.split(","):
                apply(case(kind, seed), folder / f"{kind}-{seed}", kept)
        if asked.keep is not None:
            shutil.copy(kept, asked.keep)
        known = predictions.track_record(predictions.load(kept))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(known)
    return 0 if known is not None and known["median_error"] <= 0.1 else 1


def apply(one: Case, folder: Path, kept: Path) -> dict[str, Any] | None:
    """Diagnose the case and run the check of its first prediction: that prediction, measured, as it
    stands in the file of predictions afterwards; None where nothing was predicted."""
    folder.mkdir(parents=True, exist_ok=True)
    with network(one.link_mbit) as prefix:
        words = [*one.words, f"diagnose.predictions={kept}", "hydra.run.dir=job"]
        command([*prefix, *PROGRAM, *words], folder)
        record = json.loads((folder / "job" / "result.json").read_text())
        advice = [a for a in record["diagnosis"]["advice"] if a["predicted_gain"] is not None]
        if not advice:
            print(f"{one.name}: {record['diagnosis']['bound']}, nothing predicted", flush=True)
            return None
        command([*prefix, *PROGRAM, *shlex.split(advice[0]["check"])[1:]], folder)
    done = next(
        p
        for p in predictions.load(kept)
        if p["override"] == advice[0]["override"] and p["trial_hash"] == record["job"]["trial_hash"]
    )
    low, high = done["predicted_bounds"]
    gain = done["measured_gain"]
    error = done["predicted_gain"] / gain - 1
    print(
        f"{one.name:<24}{done['override']:<34}predicted {done['predicted_gain']:.3f} "
        f"[{low:.3f}, {high:.3f}], measured {gain:.3f}: {error:+.1%}"
        + ("" if low <= gain <= high else "   OUT OF BOUNDS"),
        flush=True,
    )
    return done


if __name__ == "__main__":
    raise SystemExit(main())
