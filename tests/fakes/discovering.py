"""Replicas that discover, without sockets and without waiting: a test gives each its events, in its order."""

from typing import Any

from fakes.cluster import Cluster
from fakes.gateway import FakeShared, VirtualTime, log_port, registry

from policies import FleetRules, FleetState, Op, Worker, departures
from router.discovery import Discovery, Selection
from router.discovery.pods import PodRules
from router.fleet import Core
from router.fleet.discovered import Note, note_of

PLAIN = Selection("cluster", "llm", "", "app=engine")


class Log:
    """The operations of all replicas in one order; each replica reads them when the test says so."""

    def __init__(self) -> None:
        self.ops: list[Op] = []


class _Fold(FakeShared):
    """One replica's fold of the log: its own operations count at once, those of others when they are read."""

    def __init__(self, log: Log) -> None:
        super().__init__(FleetRules())
        self._log = log
        self._read = 0
        self.fleet = FleetState(FleetRules())

    def publish(self, op: Op) -> None:
        super().publish(op)
        self._log.ops.append(op)

    def read(self) -> None:
        for op in self._log.ops[self._read :]:
            self.fleet.apply(op)
        self._read = len(self._log.ops)


class Replica:
    """A replica that discovers.

    Args:
        cluster: The API server with the pods.
        selections: Selections of the replica.
        log: Shared with other replicas.
        time: Clock shared by all replicas.
        name: Its id.
    """

    def __init__(
        self,
        cluster: Cluster,
        *selections: Selection,
        log: Log | None = None,
        time: VirtualTime | None = None,
        name: str = "r1",
        rules: PodRules | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.time = time or VirtualTime()
        self.shared = _Fold(log or Log())
        self.fleet = self.shared.fleet
        self.warm = True
        self.registry = registry(self.shared, self.time, replica=name)
        self.discovery = Discovery(
            [(selection, cluster) for selection in selections or (PLAIN,)],
            rules or PodRules(),
            Core(
                self.fleet,
                self.registry,
                log_port(self.shared, self.time, name, ready=lambda: self.warm),
            ),
            resync_s=60.0,
            clock=self.time.time,
        )
        self.watches = self.discovery.watches

    async def list(self) -> None:
        """Let every watch list, and settle."""
        for watch in self.watches:
            await watch.reconcile()
        await self.discovery.settle()

    async def hear(self) -> None:
        """Let every watch read the new events, and settle."""
        for watch in self.watches:
            selection = watch.selection
            for _, kind, obj in self.cluster.told(
                selection.namespace, selection.selector, int(watch.version)
            ):
                watch.apply(self.cluster.event(kind, obj))
        await self.discovery.settle()

    async def wait(self, seconds: float) -> None:
        """Let time pass, and settle."""
        self.time.advance(seconds)
        await self.discovery.settle()
        for gone in departures(self.fleet, self.name, (self.name,), self.time.clock.now_us()):
            self.shared.publish(gone)

    def worker(self, worker_id: str = "10.0.0.1:8000") -> Worker:
        """One worker."""
        worker = self.fleet.worker(worker_id)
        assert worker is not None
        return worker

    def note(self, worker_id: str = "10.0.0.1:8000") -> Note:
        """The note of discovery on one worker."""
        note = note_of(self.worker(worker_id).labels)
        assert note is not None
        return note

    def labels(self, worker_id: str = "10.0.0.1:8000") -> dict[str, str]:
        """Labels of a worker but those of discovery."""
        labels = self.worker(worker_id).labels
        return {name: value for name, value in labels.items() if not name.startswith("discover")}

    def workers(self) -> dict[str, str]:
        """All workers, and whether they serve or drain."""
        return {
            worker.worker_id: "drains" if worker.draining else "serves" for worker in self.fleet.workers()
        }

    def states(self) -> dict[str, Any]:
        """Number of pods in each state."""
        return dict(self.discovery.states())
