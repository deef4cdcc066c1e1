"""`python -m tests.planted`: what paceline says of jobs with a known bottleneck, as a confusion
matrix. Seeds 0 to 4 are for tuning, 5 to 14 for the report."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.planted.cases import KINDS, Case, case
from tests.planted.kit import Result, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--seeds", default="5-14", help="as 0-4 or 7 (default: %(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of: %(default)s")
    parser.add_argument("--at-once", type=int, default=1, help="cases side by side")
    parser.add_argument("--out", type=Path, help="also write each case to this file, a JSON a line")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    cases = [case(kind, seed) for seed in seeds for kind in asked.kinds.split(",")]
    folder = Path(tempfile.mkdtemp(prefix="planted-"))
    try:
        with ThreadPoolExecutor(asked.at_once) as pool:
            results = list(pool.map(lambda one: _one(one, folder, asked.out), cases))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print()
    print(matrix(results))
    print(summary(results))
    return 0 if all(r.right for r in results) else 1


def _one(one: Case, folder: Path, out: Path | None) -> Result:
    try:
        result = run(one, folder / one.name)
    except Exception as error:  # the others' hours aren't lost for it
        print(f"{one.name}: {error}", flush=True)
        result = Result(one, "failed", None, {}, {"unknown": math.inf})
    shutil.rmtree(folder / one.name, ignore_errors=True)
    gains = ", ".join(f"{bound} {gain:.2f}" for bound, gain in result.gains.items())
    mark = "" if result.right else "   WRONG"
    share = "-" if result.share is None else f"{result.share:.0%}"
    print(f"{one.name:<24}{result.said} ({share}); gains {gains}{mark}", flush=True)
    if out is not None:
        with out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
    return result


def matrix(results: list[Result]) -> str:
    """Rows: the largest measured gain. Columns: what was said."""
    truths = sorted({r.truth for r in results})
    said = sorted({r.said for r in results} | set(truths))
    width = max(map(len, [*said, "truth"])) + 2
    lines = ["".join(f"{word:>{width}}" for word in ["truth", *said])]
    for truth in truths:
        counts = [sum(r.truth == truth and r.said == one for r in results) for one in said]
        lines.append("".join(f"{word:>{width}}" for word in [truth, *map(str, counts)]))
    return "\n".join(lines)


def summary(results: list[Result]) -> str:
    right = sum(r.right for r in results)
    unsure = [r for r in results if r.said == "undetermined"]
    large = sum(r.true_share > 0.5 for r in unsure)
    return (
        f"{right} of {len(results)} right ({right / len(results):.1%}); {len(unsure)} "
        f"undetermined, {large} of them with a plant of over half a step"
    )


if __name__ == "__main__":
    raise SystemExit(main())
