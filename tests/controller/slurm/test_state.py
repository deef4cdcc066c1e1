"""Reading squeue and sacct: what they wrote on a real cluster, and anything else."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as some

from paceline.controller.slurm.state import (
    TERMINAL,
    JobState,
    read_sacct,
    read_squeue,
    signal_name,
)

SQUEUE = """\
16|CANCELLED|None|n1|0|15|2026-11-30T13:32:39|
24|PENDING|ReqNodeNotAvail, UnavailableNodes:n2||1|0|N/A|
25|NODE_FAIL|NodeDown|n2|0|0|2026-11-30T13:32:40|
17|FAILED|JobLaunchFailure|n1|0|9|2026-11-30T13:32:39|
14|FAILED|JobLaunchFailure|n1|0|4021|2026-11-30T13:29:41|
15|FAILED|NonZeroExitCode|n[1-2]|0|768|2026-11-30T13:32:37|
20_[4-9%2]|PENDING|JobArrayTaskLimit||0|0|N/A|
20_3|RUNNING|None|n2|0|0|2026-11-30T13:32:39|
21+1|COMPLETING|None|n2|0|0|2026-11-30T13:32:39|
"""

SACCT = """\
16|CANCELLED by 1000|None|n1|0:0|2026-11-30T13:32:39
19|CANCELLED by 0|JobHeldUser|None assigned|0:0|Unknown
23|REQUEUED|None|n1|0:0|2026-11-30T13:32:40
24|NODE_FAIL|None|n2|0:0|2026-11-30T13:32:40
23|RUNNING|BeginTime|n1|0:0|2026-11-30T13:32:50
17|FAILED|None|n1|0:9|2026-11-30T13:32:39
17.batch|FAILED||n1|0:9|2026-11-30T13:32:39
17.0|CANCELLED by 0||n1|0:15|2026-11-30T13:32:39
21+0|OUT_OF_MEMORY|None|n1|0:125|2026-11-30T13:32:39
"""


def test_squeue() -> None:
    found = read_squeue(SQUEUE)
    assert found["16"] == JobState(
        "16", "CANCELLED", "", "n1", 0, 15, 0, True, since="2026-11-30T13:32:39"
    )
    waits = found["24"]
    assert (waits.reason, waits.nodes) == ("ReqNodeNotAvail, UnavailableNodes:n2", "")
    assert (waits.restarts, waits.over, waits.since) == (1, False, None)
    assert (found["15"].exit_code, found["15"].nodes) == (3, "n[1-2]")
    assert (found["17"].exit_code, found["17"].signal) == (0, 9)
    assert {id for id, state in found.items() if not state.over} == {
        "24",
        "20_[4-9%2]",
        "20_3",
        "21+1",
    }


def test_sacct_gives_the_last_start_of_a_job_and_counts_those_before() -> None:
    found = read_sacct(SACCT)
    assert set(found) == {"16", "19", "23", "24", "17", "21+0"}  # steps are no jobs
    assert (found["23"].word, found["23"].restarts, found["23"].over) == ("RUNNING", 1, False)
    assert (found["16"].word, found["16"].by) == ("CANCELLED", "1000")
    assert (found["19"].nodes, found["19"].since) == ("", None)
    assert (found["17"].signal, found["17"].by) == (9, None)
    assert found["21+0"].over


def test_newer_commands_write_the_exit_code_as_sacct_does() -> None:
    line = "9|FAILED|NonZeroExitCode|n1|0|3:0|N/A|"
    assert read_squeue(line)["9"].exit_code == 3


@pytest.mark.parametrize("read", [read_squeue, read_sacct])
@given(text=some.text(alphabet=some.sampled_from(string.printable + "|_+[]:ä\0\n")))
def test_garbage_is_left_out(read: object, text: str) -> None:
    found = read(text)  # type: ignore[operator]
    assert all(id.partition("_")[0].partition("+")[0].isdecimal() for id in found)


IDS = some.one_of(
    some.integers(1, 10**9).map(str),
    some.builds("{}_{}".format, some.integers(1, 10**6), some.integers(0, 4000)),
    some.builds("{}_[{}-{}%2]".format, some.integers(1, 10**6), some.just(1), some.just(9)),
    some.builds("{}+{}".format, some.integers(1, 10**6), some.integers(0, 8)),
)
WORDS = some.sampled_from([*TERMINAL, "PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"])
REASONS = some.text(alphabet=string.ascii_letters + " ,:()=_-[]").map(str.strip)
NODES = some.sampled_from(["", "n1", "n[1-2,7]", "gpu-a01,gpu-b[02-11]"])


@given(
    rows=some.lists(
        some.tuples(IDS, WORDS, REASONS, NODES, some.integers(0, 99), some.integers(0, 255)),
        unique_by=lambda row: row[0],
    ),
    noise=some.lists(some.sampled_from(["", "slurm_load_jobs error", "|||", "x|y", "1.0|RUNNING"])),
)
def test_every_well_formed_line_is_read_whatever_stands_between(
    rows: list[tuple[str, str, str, str, int, int]], noise: list[str]
) -> None:
    lines = ["|".join([i, w, r, n, str(k), str(c << 8), "N/A", ""]) for i, w, r, n, k, c in rows]
    mixed = [line for pair in zip(noise, lines, strict=False) for line in pair]
    mixed += lines[len(noise) :]
    found = read_squeue("\n".join(mixed))
    assert len(found) == len(rows)
    for id, word, reason, nodes, restarts, code in rows:
        state = found[id]
        assert (state.word, state.nodes, state.restarts) == (word, nodes, restarts)
        assert state.reason == ("" if reason == "None" else reason)
        assert state.exit_code == code
        assert state.over == (word in TERMINAL)


def test_a_number_that_is_no_signal_here() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(53) is None  # SLURM's own: it could not start the script
