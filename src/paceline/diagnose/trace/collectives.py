"""Collectives: how many, how large, how fast."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.diagnose.trace.columns import KERNEL, Detail, Ints, Trace

SHOWN = 10

BYTES = {
    "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "signed char": 1, "int8": 1, "uint8": 1,
    "half": 2, "bfloat16": 2, "c10::half": 2, "c10::bfloat16": 2, "short": 2, "float16": 2,
    "float": 4, "int": 4, "float32": 4, "int32": 4,
    "double": 8, "long": 8, "long int": 8, "float64": 8, "int64": 8, "c10::complex<float>": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element, by the names that Kineto and c10d give to dtypes."""

WORDS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "_all_gather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_allv": "all_to_all",
}
"""Names of one collective over the versions of torch."""


def bus_factor(collective: str, ranks: int) -> float | None:
    """Bus bandwidth / algorithm bandwidth, as in nccl-tests (doc/PERFORMANCE.md): what a link
    carries, which doesn't depend on how many ranks there are. None for an unknown collective."""
    if ranks < 2:
        return None
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0 if collective in ("broadcast", "reduce", "send", "recv") else None


def table(trace: Trace, rows: Ints) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Collectives by name, dtype, size and group, the most time first: count, total_us, bytes of
    one, algorithm and bus bandwidth in GB/s over all of them; null with reasons.

    Of the kernels on the device where there are any, else of the host's annotations of them; their
    time counts the wait for the other ranks, so the bandwidths are lower bounds.
    """
    kernels = rows[trace.is_communication[rows]]
    named = _kernels(trace, kernels) if len(kernels) else _annotated(trace, rows)
    groups: dict[tuple[str, str | None, int | None, int | None], list[int]] = {}
    for row, found in named:
        ranks = found.group_size or trace.group_size
        key = (_word(found, trace.text(row)), found.dtype, _bytes(found), ranks)
        groups.setdefault(key, []).append(int(trace.end[row] - trace.start[row]))
    lines = [_line(*key, durations) for key, durations in groups.items()]
    lines.sort(key=lambda c: (-c["total_us"], str(c)))
    return lines[:SHOWN], _reasons(lines)


def _kernels(trace: Trace, kernels: Ints) -> list[tuple[int, Detail]]:
    """A kernel's own metadata, else that of the annotation around its launch call."""
    found = []
    talk = np.array([r for r in sorted(trace.details) if trace.kind[r] != KERNEL], np.int64)
    for row in kernels.tolist():
        own = trace.details.get(row)
        if own is None or own.in_elements is None:
            own = _around(trace, talk, int(trace.launch[row])) or own
        found.append((row, own or Detail(None, None, None, None, None)))
    return found


def _around(trace: Trace, talk: Ints, call: int) -> Detail | None:
    """The innermost annotation with metadata that was running when the call began."""
    if call < 0 or not len(talk):
        return None
    at = int(np.searchsorted(talk, call)) - 1
    for place in range(at, max(-1, at - 8), -1):
        row = int(talk[place])
        same = trace.thread[row] == trace.thread[call]
        found = trace.details[row]
        if same and trace.end[row] > trace.start[call] and found.in_elements is not None:
            return found
    return None


def _annotated(trace: Trace, rows: Ints) -> list[tuple[int, Detail]]:
    """Host annotations such as `gloo:all_reduce`: from the call until it was done."""
    inside = set(rows.tolist())
    held = [row for row in trace.details if row in inside and ":" in trace.text(row)]
    return [(r, trace.details[r]) for r in held if not trace.text(r).startswith("c10d::")]


def _word(found: Detail, name: str) -> str:
    word = found.collective
    if word is None or "(" in word or "Kernel" in word:
        return name.partition("(")[0]
    return WORDS.get(word, word)


def _bytes(found: Detail) -> int | None:
    """nccl-tests' size: of the larger buffer of a rank."""
    element = BYTES.get(str(found.dtype).lower())
    elements = max(found.in_elements or 0, found.out_elements or 0)
    return element * elements if element and elements else None


def _line(
    word: str, dtype: str | None, size: int | None, ranks: int | None, ns: list[int]
) -> dict[str, Any]:
    total = sum(ns)
    algorithm = size * len(ns) / total if size and total else None
    factor = bus_factor(word, ranks) if ranks else None
    return {
        "collective": word,
        "dtype": dtype,
        "bytes": size,
        "group_size": ranks,
        "count": len(ns),
        "total_us": total / 1000,
        "mean_us": total / 1000 / len(ns),
        "algorithm_gb_per_s": algorithm,
        "bus_gb_per_s": algorithm * factor if algorithm and factor else None,
    }


def _reasons(lines: list[dict[str, Any]]) -> dict[str, str]:
    reasons = {}
    if any(line["bytes"] is None for line in lines):
        reasons["bytes"] = "the trace lacks the sizes of some: profile with record_shapes=True"
    unknown = [n for n in lines if n["bus_gb_per_s"] is None and n["bytes"] is not None]
    if any(line["group_size"] is None for line in unknown):
        reasons["bus_gb_per_s"] = "the trace doesn't say how many ranks took part in some"
    elif unknown:
        reasons["bus_gb_per_s"] = "nccl-tests has no formula for some"
    elif reasons:
        reasons["bus_gb_per_s"] = reasons["bytes"]
    return reasons
