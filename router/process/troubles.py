"""Sentences about the parts of a process that do not work: for readiness, the console and vital signs."""

from router.discovery import Discovery
from router.fleet import Core, Health
from router.process.tenant_side import TenantSide


def troubles(core: Core, tenants: TenantSide, discovery: Discovery | None) -> tuple[str, ...]:
    """Return a sentence for each part that does not work; ``discovery`` is None where it is off."""
    status, found = core.log.status(), []
    if status.degraded_reason is not None:
        found.append(f"the shared log: {status.degraded_reason}")
    workers = core.registry.all()
    unwell = sum(local.health is not Health.HEALTHY for local in workers)
    if unwell:
        found.append(f"{unwell} of {len(workers)} workers are not healthy")
    files = (("keys", tenants.keys), ("tokens", tenants.tokens))
    found += [
        f"the file of {noun} cannot be used; what it said before holds, and the log says why"
        for noun, watch in files
        if watch is not None and watch.problem is not None
    ]
    if discovery is not None and discovery.problem is not None:
        found.append(f"discovery of pods: {discovery.problem}; known workers stay")
    if tenants.leases.degraded_reason is not None:
        found.append(f"limits of tenants: {tenants.leases.degraded_reason}")
    return tuple(found)
