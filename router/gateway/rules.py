"""The settings as what a gateway's parts are told: plain rules, at the start and whenever one changes."""

from policies import (
    Policy,
    decode_policy,
    make_policy,
)
from router.settings import PlacementSettings


def placement_policy(placement: PlacementSettings) -> Policy:
    """How a worker is chosen."""
    return make_policy(placement.policy, placement.options_of(placement.policy))


def prefill_policy(placement: PlacementSettings) -> Policy | None:
    """How one is chosen where some only prefill; None: as everywhere."""
    name = placement.prefill_policy
    return make_policy(name, placement.options_of(name)) if name else None


def decode_worker_policy(placement: PlacementSettings) -> Policy | None:
    """How a decode worker is chosen; None: by what it costs (`policies.DECODE_COST`)."""
    return decode_policy(placement.decode_policy, placement.options_of(placement.decode_policy))
