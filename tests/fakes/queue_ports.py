"""What the view of the queue sees, without a gateway behind it: a room that asks nobody by itself."""

from fakes.gateway import FakeShared, VirtualTime

from policies import Admission, AdmissionRules, Lanes, OpLog, RequestQueue, RoomRules
from router.admin import QueuePorts
from router.fleet import Registry
from router.gateway.refusals import Refusals
from router.settings import QueueSettings


def queue_ports(
    shared: FakeShared, registry: Registry, time: VirtualTime, settings: QueueSettings | None = None
) -> QueuePorts:
    """Three requests at a time on a worker, and a target backlog of half a second."""
    now_us = time.clock.now_us
    admission = Admission(AdmissionRules(worker_running_max=3), shared.fleet)
    room = RequestQueue(
        log=OpLog("r1", shared.publish, now_us),
        fleet=shared.fleet,
        admission=admission,
        lanes=Lanes(lambda lane: registry.eligible(None, now_us())),
        rules=RoomRules(),
        call_later=time.call_later,
        grace_s=lambda: 0.02,
        ended=lambda *_: None,
    )
    return QueuePorts(
        replica="r1",
        fleet=shared.fleet,
        registry=registry,
        admission=admission,
        room=room,
        settings=lambda: settings or QueueSettings(),
        refusals=Refusals(now_us),
        now_us=now_us,
    )
