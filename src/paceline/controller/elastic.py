"""What torch elastic is given: fixed places for nodes, and each rank's environment and log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paceline.controller.meet import Follower, Lead


def fixed(meeting: Lead | Follower, run_id: str) -> Any:
    """Elastic's rendezvous for nodes that have met already: their group ranks follow their own
    numbers, whoever came first. Elastic's own c10d rendezvous numbers nodes by their addresses,
    which it connects to."""
    from torch._C._distributed_c10d import HashStore
    from torch.distributed.elastic.rendezvous.api import (
        RendezvousHandler,
        RendezvousInfo,
        RendezvousStoreInfo,
    )

    class Fixed(RendezvousHandler):
        def get_backend(self) -> str:
            return "paceline"

        @property
        def use_agent_store(self) -> bool:
            return True  # the ranks are clients of the meeting's store, none of them serves one

        def next_rendezvous(self) -> RendezvousInfo:
            where = RendezvousStoreInfo(meeting.host, meeting.port)
            return RendezvousInfo(HashStore(), meeting.group_rank, len(meeting.nodes), where)

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            return None

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return run_id

        def shutdown(self) -> bool:
            return True

    return Fixed()


def environment(launch: dict[str, Any], meeting: Lead | Follower) -> dict[str, str]:
    """Variables of the ranks that launch keys stand for. gloo alone would take the interface of
    the host's name, which other nodes may not reach."""
    gloo = launch["gloo_interface"]
    if gloo is None and len(meeting.nodes) > 1 and "GLOO_SOCKET_IFNAME" not in os.environ:
        gloo = meeting.interface()
    found = {"GLOO_SOCKET_IFNAME": gloo, "NCCL_SOCKET_IFNAME": launch["nccl_interface"]}
    found |= {f"NCCL_{name}": value for name, value in launch["nccl"].items()}
    return {name: str(value) for name, value in found.items() if value is not None}


def rank_setup(log: Path, environment: dict[str, str], attempt: int) -> Any:
    """Elastic's log specification, the one place where it gives a rank's environment out of hand:
    one file a rank, log/rank{N}.log, for both streams; and `environment` added."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class RankSetup(LogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            files, errors = {}, {}
            for local, env in envs.items():
                rank = env["RANK"]
                files[local] = str(log / f"rank{rank}.log")
                errors[local] = str(log / f"rank{rank}.elastic.json")
                env["TORCHELASTIC_ERROR_FILE"] = errors[local]
                env["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
                env |= environment
            return LogsDest(files, files, {}, {}, errors, os.devnull, os.devnull)

        @property
        def root_log_dir(self) -> str:
            return str(log)

    return RankSetup(str(log))
