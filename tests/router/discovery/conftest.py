"""Fixtures that several test files here share."""

import pytest_asyncio
from fakes.cluster import Cluster, pod
from fakes.discovering import Replica


@pytest_asyncio.fixture
async def replica_of_two() -> tuple[Cluster, Replica]:
    """A replica that knows two pods."""
    cluster = Cluster()
    cluster.put(pod("a"))
    cluster.put(pod("b", ip="10.0.0.2"))
    replica = Replica(cluster)
    await replica.list()
    return cluster, replica
