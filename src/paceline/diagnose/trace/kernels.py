"""The kernels that take the device's time."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.diagnose.trace.columns import KERNEL, Ints, Trace

SHOWN = 10


def top(trace: Trace, rows: Ints, kind: int = KERNEL) -> list[dict[str, Any]]:
    """Of these device rows the kernels by total time: count, total_us, mean_us, and share_pct of
    the time of all kernels (which may run side by side)."""
    rows = rows[trace.kind[rows] == kind]
    talks = trace.is_communication
    found = by_name(trace, rows, trace.end[rows] - trace.start[rows])
    for line in found[:SHOWN]:
        line["communication"] = bool(talks[rows[trace.name[rows] == line.pop("id")]].any())
    return found[:SHOWN]


def by_name(trace: Trace, rows: Ints, ns: Ints) -> list[dict[str, Any]]:
    """count, total_us, mean_us, share_pct of each name, the most time first."""
    if not len(rows):
        return []
    ids = trace.name[rows]
    counts = np.bincount(ids)
    totals = np.zeros(len(counts), np.int64)
    np.add.at(totals, ids, ns)
    whole = int(totals.sum())
    seen = np.flatnonzero(counts)
    order = sorted(seen.tolist(), key=lambda i: (-int(totals[i]), trace.names[i]))
    return [
        {
            "id": i,
            "name": trace.names[i],
            "count": int(counts[i]),
            "total_us": int(totals[i]) / 1000,
            "mean_us": int(totals[i]) / 1000 / int(counts[i]),
            "share_pct": 100 * int(totals[i]) / whole if whole else None,
        }
        for i in order
    ]
