"""A cluster for the tests in this folder; after each of them nothing may be left on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import TINY, Command
from tests.slurm.bound import Bound
from tests.slurm.cluster import Cluster, missing
from tests.slurm.training import JOB, SLOW


@pytest.fixture(scope="session")
def bound() -> Iterator[Bound]:
    """Over all clusters of this session, each of which lives until its end."""
    made: list[Cluster] = []
    with Bound(made) as bound:
        yield bound
    for cluster in made:
        cluster.stop()


@pytest.fixture(scope="session")
def clusters(bound: Bound) -> Callable[[bool], Cluster]:
    """`clusters(accounting)`: that cluster, started at the first call."""
    started: dict[bool, Cluster] = {}

    def get(accounting: bool) -> Cluster:
        if accounting not in started:
            lacks = missing(accounting)
            if lacks is not None:
                pytest.skip(lacks)
            started[accounting] = Cluster(accounting)
            bound.clusters.append(started[accounting])
        return started[accounting]

    return get


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, clusters: Callable[[bool], Cluster]) -> Cluster:
    """With accounting; `@pytest.mark.parametrize("cluster", [True, False], indirect=True)`: with
    and without."""
    return clusters(getattr(request, "param", True))


@pytest.fixture(scope="session")
def stub_python() -> Path:
    """Stands for Python where a cell need not train: see the file."""
    return Path(__file__).with_name("stub_python")


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, bound: Bound) -> Iterator[None]:
    """Bounds what a test starts on a cluster, and fails it for a job or a process that it left."""
    marker = request.node.get_closest_marker("timeout")
    config = request.config
    limit_s = marker.args[0] if marker else config.getoption("timeout") or config.getini("timeout")
    bound.deadline = time.monotonic() + 0.9 * float(limit_s)
    yield
    bound.deadline = None
    left = [what for cluster in bound.clusters for what in cluster.clear()]
    broken, bound.broken = bound.broken, None
    if broken:
        pytest.fail(f"ended by the bound: {broken}")
    if left:
        pytest.fail(f"left on the cluster: {'; '.join(left)}")


@pytest.fixture
def slow(command: Command) -> list[str]:
    command.most = 120
    (command.cwd / "mine.py").write_text(SLOW)
    words = [*TINY, "model._target_=mine.Model", "launch.threads_per_rank=1", "checkpoint=sync"]
    return [*words, "checkpoint.every_steps=50", "measure.gradient_check=false"]


@pytest.fixture
def single(slow: list[str]) -> list[str]:
    return [*slow, "launch=slurm", f"hydra.run.dir={JOB}"]


@pytest.fixture
def used(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster that this process's commands reach."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    return cluster
