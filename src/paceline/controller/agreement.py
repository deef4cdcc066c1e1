"""What the nodes of a job must have alike, and what to say where they don't, or don't come."""

from __future__ import annotations

import importlib.metadata
import socket
from typing import Any

import psutil

from paceline.config import shown
from paceline.controller.identity import compared
from paceline.controller.plan import Job

KEYS_SHOWN = 8

WAYS = {
    "world_size": "launch.nproc=auto found other devices; set launch.nproc",
    "device": "run.device=auto found other devices; set run.device",
    "torch": "install the same torch on every node",
}
"""Facts that must be alike beside the config, and the way out."""


def introduction(job: Job, node_rank: int) -> dict[str, Any]:
    """Who a node is, and what all must say alike."""
    return {
        "node_rank": node_rank,
        "host": socket.gethostname(),
        "torch": importlib.metadata.version("torch"),
        "device": job.requested["device"],
        "world_size": job.requested["world_size"],
        "config": compared(job.config),
    }


def differences(mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Sentences with both values; `mine` are those of node 0."""
    first, second, node = mine["config"], other["config"], other["node_rank"]
    keys = [k for k in {**first, **second} if first.get(k, ...) != second.get(k, ...)]
    problems = [
        f"{key}: {_value(first, key)} on node 0, {_value(second, key)} on node {node}; type the "
        "same command on every node"
        for key in keys[:KEYS_SHOWN]
    ]
    if len(keys) > KEYS_SHOWN:
        problems.append(f"node 0 and node {node} differ in {len(keys) - KEYS_SHOWN} keys more")
    return problems or [
        f"{fact}: {mine[fact]} on node 0, {other[fact]} on node {node}; {way}"
        for fact, way in WAYS.items()
        if mine[fact] != other[fact]
    ]


def missing(node: int, nnodes: object, endpoint: str, waited_s: float) -> str:
    """Node 0 has waited for another one. `nnodes`: as it was typed."""
    return (
        f"launch.nnodes={nnodes}: node {node} did not come to {endpoint} within "
        f"launch.meet_timeout_s={waited_s:g}; type the same command there with "
        f"launch.node_rank={node}, and check that it reaches this machine, {_addresses()}"
    )


def nobody(endpoint: str, waited_s: float, error: OSError) -> str:
    """Another node has looked for node 0."""
    return (
        f"launch.rdzv_endpoint={endpoint}: node 0 did not come there within "
        f"launch.meet_timeout_s={waited_s:g} ({error.strerror or error}), or began without this "
        "node; type the same command there with launch.node_rank=0, and check address and port"
    )


def too_late(endpoint: str) -> str:
    """Another node has come after the job began."""
    return (
        f"launch.rdzv_endpoint={endpoint}: the job has begun without this node; nodes that come "
        "later are taken in when it is started again"
    )


def _value(config: dict[str, Any], key: str) -> str:
    return shown(config[key]) if key in config else "not set"


def _addresses() -> str:
    found = [
        entry.address
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name != "lo"
    ]
    return f"{socket.gethostname()} ({', '.join(found) or 'without an address'})"
