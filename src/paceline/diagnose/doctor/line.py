"""A line of the doctor, and how its figures are written."""

from __future__ import annotations

from dataclasses import dataclass, field

OK, SLOW, MISSING = "ok", "slow", "missing"
STATES = (OK, SLOW, MISSING)
KIB, MIB, GIB = 1024, 1024**2, 1024**3

NOTHING = "n/a: nothing of this run to hold it to"


@dataclass(frozen=True)
class Line:
    """`state`: ok, slow, or missing (not there, or broken). `why`: what the state rests on, empty
    where the value says it. `way_out`: what to do, empty where nothing is wrong. `table`: rows of
    texts, the heads first."""

    name: str
    state: str
    value: str
    why: str = ""
    way_out: str = ""
    table: list[list[str]] = field(default_factory=list)


def in_bytes(number: float) -> str:
    """Binary, as memory and files are."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if number >= size:
            return f"{number / size:.{3 if number < 1000 * size else 4}g} {unit}"
    return f"{number:.0f} B"


def rate(bytes_per_s: float) -> str:
    """Decimal, as links and disks are sold."""
    for unit, size in (("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_s >= size:
            return f"{bytes_per_s / size:.3g} {unit}"
    return f"{bytes_per_s / 1e3:.3g} kB/s"


def span(seconds: float) -> str:
    """In the unit that leaves a number above 1."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
