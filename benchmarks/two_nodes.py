"""Two nodes over a slow link: is the share of communication right, and what does compression gain?

    python benchmarks/two_nodes.py [--rounds N] [--rate 500mbit] [--json FILE]

Two network namespaces joined by a link that `tc` limits are two real nodes on one machine (needs
root and iproute2). In each, `paceline strategy=ddp launch.nnodes=2 ...` is typed; each round runs,
one after the other,

- `two_nodes_plain.py` in both: the same model under torch's DDP, in turns with and without
  synchronising, by a stopwatch: the independent measure of what communication takes;
- the job with comm_hook=none and with comm_hook=fp16.

Printed: the share of the step that each side calls communication, the rates and their ratio, and
what the gates say, against one process that trains the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import two_nodes_plain as plain
from netns import Node, missing, two_nodes

from paceline.record.measure import t_interval

SHARE_TOLERANCE, RATE_TARGET = 0.15, 1.3
TIME_LIMIT_S = 600
HOOKS = ("none", "fp16")
JOB = [
    f"model.vocab_size={plain.VOCABULARY}",
    f"model.context_length={plain.LENGTH}",
    f"model.layers={plain.LAYERS}",
    f"model.heads={plain.HEADS}",
    f"model.width={plain.WIDTH}",
    f"data.global_batch_size={2 * plain.LOCAL_BATCH}",
    f"data.sequence_length={plain.LENGTH}",
    "data.max_bytes=1000000",
    "launch.threads_per_rank=1",
    "measure=quick",
    "measure.window_s=0",
    "run.steps=40",
    "run.device=cpu",
]
SCALED = [f"strategy.bucket_cap_mb={plain.BUCKET_MB}", "launch.nproc=1", "launch.nnodes=2"]


def main() -> None:
    parser = argparse.ArgumentParser(description="two nodes over a slow link")
    parser.add_argument("--rounds", type=int, default=3, help="2 or more, for intervals")
    parser.add_argument("--rate", default="500mbit", help="of the link, as tc writes it")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    lacking = missing()
    if lacking:
        sys.exit(f"two_nodes: {lacking}")
    with tempfile.TemporaryDirectory() as place, two_nodes(args.rate) as nodes:
        homes = [Path(place) / f"node{n}" for n in range(2)]
        for home in homes:
            home.mkdir()
        rounds = [one_round(number, nodes, homes) for number in range(args.rounds)]
        baseline = alone(homes[0])
        found = summary(args.rate, rounds, compared(homes[0]), baseline)
    print_result(found)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if found["ok"] else 1)


def one_round(number: int, nodes: tuple[Node, Node], homes: list[Path]) -> dict[str, Any]:
    meeting = {"MASTER_ADDR": nodes[0].address, "MASTER_PORT": "29701", "WORLD_SIZE": "2"}
    outside = both(
        nodes,
        homes,
        lambda n: [sys.executable, plain.__file__, "6"],
        lambda n, node: meeting | {"RANK": str(n), "GLOO_SOCKET_IFNAME": node.interface},
    )
    found: dict[str, Any] = {"plain": json.loads(outside)}
    for hook in HOOKS:
        words = [*JOB, *SCALED, "strategy=ddp", f"comm_hook={hook}", f"repeat={number}"]
        words += [f"launch.rdzv_endpoint={nodes[0].address}:29700"]
        words += ["diagnose=intervene", "diagnose.counter_runs=[no_sync]"]
        both(
            nodes,
            homes,
            lambda n, words=words: [
                *(sys.executable, "-m", "paceline", *words, f"launch.node_rank={n}")
            ],
            lambda n, node: {},
        )
        found[hook] = record(homes[0], "strategy=ddp", f"comm_hook={hook}", f"repeat={number}")
    return found


def both(
    nodes: tuple[Node, Node],
    homes: list[Path],
    words: Callable[[int], list[str]],
    environment: Callable[[int, Node], dict[str, str]],
) -> str:
    """Run a command on both nodes at once; what the first one printed. Ends here if one fails."""
    started = [
        subprocess.Popen(
            [*node.prefix, *words(n)],
            cwd=homes[n],
            env=os.environ | environment(n, node),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n, node in enumerate(nodes)
    ]
    try:
        said = [process.communicate(timeout=TIME_LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (out, err) in zip(started, said, strict=True):
        if process.returncode:
            sys.exit(f"two_nodes: {' '.join(process.args)} failed\n{out[-2000:]}{err[-2000:]}")
    return said[0][0]


def alone(home: Path) -> dict[str, Any]:
    """The same training by one process: what the gates compare with."""
    words = [sys.executable, "-m", "paceline", *JOB, "strategy=single"]
    done = subprocess.run(words, cwd=home, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    if done.returncode:
        sys.exit(f"two_nodes: the job of one process failed\n{done.stdout}{done.stderr}")
    return record(home, "strategy=single")


def record(home: Path, *overrides: str) -> dict[str, Any]:
    """The one record with these overrides."""
    records = [json.loads(p.read_text()) for p in home.glob("outputs/jobs/*/result.json")]
    (only,) = [r for r in records if set(overrides) <= set(r["job"]["overrides"])]
    return dict(only)


def compared(home: Path) -> dict[str, Any]:
    """`paceline compare` of all jobs, by the one of one process."""
    jobs = sorted(home.glob("outputs/jobs/*"), key=lambda p: "single" not in p.name)
    words = [sys.executable, "-m", "paceline", "compare", *map(str, jobs), "--json"]
    done = subprocess.run(words, cwd=home, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    if done.returncode:
        sys.exit(f"two_nodes: compare failed\n{done.stdout}{done.stderr}")
    return dict(json.loads(done.stdout))


def share(record: dict[str, Any]) -> float:
    """Of the steady step: what the ledger calls communication."""
    ledger = record["ledger"]
    return float(ledger["steady_phases_s"]["comm"] / ledger["steady_wall_s"])


def share_outside(turns: dict[str, list[float]]) -> float:
    """By the stopwatch: what a step takes less when it doesn't synchronise."""
    return 1 - float(np.mean(turns["local_s"]) / np.mean(turns["synced_s"]))


def share_of_counter_run(record: dict[str, Any]) -> float:
    (run,) = [r for r in record["counter_runs"] if r["name"] == "no_sync"]
    return 1 - 1 / float(run["speedup"])


def summary(
    rate: str, rounds: list[dict[str, Any]], table: dict[str, Any], baseline: dict[str, Any]
) -> dict[str, Any]:
    ledger = float(np.mean([share(r["none"]) for r in rounds]))
    outside = float(np.mean([share_outside(r["plain"]) for r in rounds]))
    counter_run = float(np.mean([share_of_counter_run(r["none"]) for r in rounds]))
    ratios = np.log([_rate(r["fp16"]) / _rate(r["none"]) for r in rounds])
    gain = t_interval(ratios)
    verdicts = {name: sorted({r[name]["validity"]["verdict"] for r in rounds}) for name in HOOKS}
    numerics = [{k: row[k] for k in ("overrides", "numerics", "validity")} for row in table["rows"]]
    off = abs(ledger / outside - 1)
    fine = all(v == ["valid"] for v in verdicts.values()) and all(
        row["validity"] == "valid" for row in table["rows"]
    )
    interval = [float(np.exp(e)) for e in (gain.low, gain.high) if e is not None]
    return {
        "rate": rate,
        "rounds": len(rounds),
        "step_s": {h: [r[h]["throughput"]["step_s_median"] for r in rounds] for h in HOOKS},
        "plain_step_s": [float(np.mean(r["plain"]["synced_s"])) for r in rounds],
        "bytes_per_step": {h: rounds[0][h]["comm"]["bytes_per_step"] for h in HOOKS},
        "share_ledger": ledger,
        "share_outside": outside,
        "share_counter_run": counter_run,
        "share_off": off,
        "fp16_ratio": float(np.exp(gain.value)),
        "fp16_ratio_ci95": interval,
        "validity": verdicts,
        "baseline_loss": baseline["numerics"]["final_loss"],
        "numerics": numerics,
        "ok": bool(fine and off <= SHARE_TOLERANCE and np.exp(gain.value) >= RATE_TARGET),
    }


def _rate(record: dict[str, Any]) -> float:
    return float(record["throughput"]["steady_units_per_s"])


def print_result(found: dict[str, Any]) -> None:
    step = {hook: float(np.mean(found["step_s"][hook])) for hook in HOOKS}
    print(f"two nodes, one rank each, over {found['rate']}; {found['rounds']} rounds\n")
    print("| job | step, s | MB sent a step | share of communication |")
    print("|---|---:|---:|---:|")
    print(f"| plain DDP, stopwatch | {np.mean(found['plain_step_s']):.3f} | | ", end="")
    print(f"{found['share_outside']:.1%} |")
    for hook in HOOKS:
        sent = found["bytes_per_step"][hook] / 1e6
        shown = f"{found['share_ledger']:.1%}" if hook == "none" else ""
        print(f"| comm_hook={hook} | {step[hook]:.3f} | {sent:.1f} | {shown} |")
    print(f"\nits own counter-run without synchronising: {found['share_counter_run']:.1%}")
    print(f"off the stopwatch's share by {found['share_off']:.1%} (allowed {SHARE_TOLERANCE:.0%})")
    ends = ", ".join(f"{end:.3f}" for end in found["fp16_ratio_ci95"])
    print(f"fp16 gives {found['fp16_ratio']:.3f} [{ends}] times the rate (target {RATE_TARGET})")
    for row in found["numerics"]:
        what = {key: row["overrides"][key] for key in ("strategy", "comm_hook")}
        said = {key: value for key, value in row["numerics"].items() if value}
        print(f"gates: {what}: {row['validity']} {said or ''}")
    print("ok" if found["ok"] else "NOT as it should be")


if __name__ == "__main__":
    main()
