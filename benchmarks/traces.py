"""How fast `paceline diagnose` reads traces, beside HolisticTraceAnalysis; linearity; memory.

    python benchmarks/traces.py [--traces DIR] [--holistic PYTHON] [--rounds N] [--json FILE]

The peer needs an environment of its own: `python -m venv hta && hta/bin/pip install
HolisticTraceAnalysis`, then `--holistic hta/bin/python`. Each side is one process that has
imported everything; per trace they take turns, and the median of the rounds counts. A round reads
the gzip file and answers: the peer its temporal breakdown, overlap and kernel breakdown, paceline
these and all the rest that it prints.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
TIMES = (1, 4, 16)
SOURCE = "a100_nccl_world2_rank0.json.gz"
"""Which one is copied one behind the other for the table of linearity."""

LOOP = """
import json, sys, time
for line in sys.stdin:
    begin, cpu = time.perf_counter(), time.process_time()
    try:
        answer(line.strip())
        took = [time.perf_counter() - begin, time.process_time() - cpu]
        print(json.dumps([took, None]), flush=True)
    except Exception as error:
        print(json.dumps([None, f"{type(error).__name__}: {error}"[:60]]), flush=True)
"""

OURS = (
    """
from pathlib import Path
from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.reading import read
def answer(path):
    analyse(read(Path(path)))
"""
    + LOOP
)

THEIRS = (
    """
import contextlib, logging, os, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
def answer(path):
    with contextlib.redirect_stdout(sys.stderr):
        trace = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)
        trace.get_temporal_breakdown(visualize=False)
        trace.get_comm_comp_overlap(visualize=False)
        trace.get_gpu_kernel_breakdown(visualize=False)
"""
    + LOOP
)

PEAK = """
import re, sys
from pathlib import Path
from paceline.diagnose.trace.analysis import analyse
from paceline.diagnose.trace.reading import read
if len(sys.argv) > 1:
    analyse(read(Path(sys.argv[1])))
# not ru_maxrss, which a process inherits from the one that started it
print(1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]))
"""


class Side:
    """A process that has imported what it needs and waits for paths."""

    def __init__(self, python: str, program: str) -> None:
        self.process = subprocess.Popen(
            [python, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def seconds(self, path: Path) -> tuple[list[float] | None, str | None]:
        """Wall and processor seconds of one round, or why there are none."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{path}\n")
            self.process.stdin.flush()
            took, why = json.loads(self.process.stdout.readline())
        except (OSError, ValueError):
            raise SystemExit(f"{self.process.args[0]} ended; has it the package?") from None
        return took, why


@contextmanager
def side(python: str, program: str) -> Iterator[Side]:
    made = Side(python, program)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


def beside(files: list[Path], holistic: str | None, rounds: int) -> list[dict[str, Any]]:
    rows = []
    with ExitStack() as held:
        ours = held.enter_context(side(sys.executable, OURS))
        theirs = held.enter_context(side(holistic, THEIRS)) if holistic else None
        for file in files:
            mine: list[list[float]] = []
            peers: list[list[float]] = []
            why = None if holistic else "not asked for"
            for number in range(rounds + 1):  # the first one warms up caches, and doesn't count
                mine.append(must(*ours.seconds(file), file))
                if theirs is not None and why is None:
                    took, why = theirs.seconds(file)
                    peers += [took] if took is not None else []
                if number == 0:
                    mine.clear()
                    peers.clear()
            row: dict[str, Any] = {"trace": file.name, "why": why}
            for place, kind in enumerate(("wall", "cpu")):
                our, their = ([took[place] for took in side] for side in (mine, peers))
                row[f"paceline_{kind}_s"] = median(our)
                row[f"holistic_{kind}_s"] = median(their) if their else None
                row[f"{kind}_ratio"] = median(their) / median(our) if their else None
            rows.append(row)
    return rows


def must(took: list[float] | None, why: str | None, path: Path) -> list[float]:
    if took is None:
        raise SystemExit(f"{path}: {why}")
    return took


def copied(source: Path, times: int, folder: Path) -> tuple[Path, int]:
    """The trace, `times` over, each copy behind the one before; its size as text."""
    document = json.loads(gzip.decompress(source.read_bytes()))
    events = document["traceEvents"]
    timed = [e for e in events if e.get("ph") == "X"]
    length = max(e["ts"] + e["dur"] for e in timed) - min(e["ts"] for e in timed) + 1000
    made = []
    for number in range(times):
        for event in events:
            copy = dict(event)
            if "ts" in copy:
                copy["ts"] += number * length
            if "correlation" in copy.get("args", {}):
                shifted = copy["args"]["correlation"] + number * 10_000_000
                copy["args"] = copy["args"] | {"correlation": shifted}
            if str(copy.get("name")).startswith("ProfilerStep#"):
                step = int(copy["name"].partition("#")[2]) + 1000 * number
                copy["name"] = f"ProfilerStep#{step}"
            made.append(copy)
    text = json.dumps(document | {"traceEvents": made}, indent=1).encode()
    path = folder / f"{times}x.json.gz"
    path.write_bytes(gzip.compress(text, 1))
    return path, len(text)


def peak(*given: str) -> int:
    done = subprocess.run([sys.executable, "-c", PEAK, *given], capture_output=True, check=True)
    return int(done.stdout)


def linear(source: Path, rounds: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder, side(sys.executable, OURS) as ours:
        bare = peak()
        made = {times: copied(source, times, Path(folder)) for times in TIMES}
        taken: dict[int, list[list[float]]] = {times: [] for times in TIMES}
        for _ in range(rounds):
            for times, (path, _) in made.items():
                taken[times].append(must(*ours.seconds(path), path))
        for times, (path, size) in made.items():
            wall, cpu = (median(took[place] for took in taken[times]) for place in (0, 1))
            row = {"times": times, "text_mb": size / 1e6, "wall_s": wall, "cpu_s": cpu}
            row["cpu_s_a_copy"] = cpu / times
            rows.append(row | {"peak_over_text": (peak(str(path)) - bare) / size})
    return rows


def show(title: str, rows: list[dict[str, Any]], columns: dict[str, str]) -> None:
    print(f"\n{title}\n")
    cells = [list(columns.values()), *([_cell(row[key]) for key in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for number, line in enumerate(cells):
        texts = [line[0].ljust(widths[0])]
        texts += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("| " + " | ".join(texts) + " |")
        if number == 0:
            print("|-" + "-|-".join("-" * width for width in widths) + "-|")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of *.json.gz")
    parser.add_argument("--holistic", metavar="PYTHON", help="an interpreter that has the peer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    files = sorted(asked.traces.glob("*.json.gz"))
    if not files:
        print(f"{asked.traces}: no *.json.gz there; give a folder of traces by --traces")
        return 2
    rows = beside(files, asked.holistic, asked.rounds)
    columns = {"trace": "trace", "paceline_wall_s": "paceline s", "holistic_wall_s": "holistic s"}
    columns |= {"wall_ratio": "ratio", "cpu_ratio": "of CPU time", "why": "why not"}
    show("File to answer, imports not counted; the same files in turns", rows, columns)
    source = asked.traces / SOURCE
    lines = linear(source if source.exists() else files[0], max(3, asked.rounds // 2))
    columns = {"times": "copies", "text_mb": "MB of text", "wall_s": "paceline s"}
    columns |= {"cpu_s_a_copy": "CPU s a copy", "peak_over_text": "peak memory / text"}
    show("One trace over and over", lines, columns)
    if asked.json:
        asked.json.write_text(json.dumps({"rows": rows, "linear": lines}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
