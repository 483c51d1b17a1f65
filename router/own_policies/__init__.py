"""Policies that users write: loaded by name, tried, timed, and switched off when they fail.

    loading.py    from PACKAGE.MODULE:NAME or an entry point to a rule of the registry's form
    trial.py      the fleet on which each is tried when it is loaded
    workers_view.py  their view of the workers
    guarded.py    budget, fallback and counts while the gateway decides

`cacheway simulate` and `plan` load by the same lines, and need no guard: there an error ends the run.
"""

from policies import Floats, RequestView
from router.own_policies.guarded import FailureReason, OwnPolicies, check_own_policies
from router.own_policies.loading import GROUP, NotLoaded, full_name, load_rule, rules_of
from router.own_policies.workers_view import OwnPolicy, WorkersView

__all__ = [
    "GROUP",
    "FailureReason",
    "Floats",
    "NotLoaded",
    "OwnPolicies",
    "OwnPolicy",
    "RequestView",
    "WorkersView",
    "check_own_policies",
    "full_name",
    "load_rule",
    "rules_of",
]
