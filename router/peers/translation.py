"""Translates the flags of other routers into values of ours, and reports them in one note."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from policies import POLICIES
from router.peers.policies import DECODE_NAMES, POLICY_NAMES
from router.peers.rows import PeerFlag
from router.peers.table import FLAGS

PAGE = "docs/flags-of-other-routers.md"

_NAMES = {
    "placement.policy": POLICY_NAMES,
    "placement.prefill_policy": POLICY_NAMES,
    "placement.shadow_policy": POLICY_NAMES,
    "placement.decode_policy": DECODE_NAMES,
}
_POLICY_SOURCES = (
    ("placement.policy", "CACHEWAY_POLICY"),
    ("placement.prefill_policy", "CACHEWAY_PREFILL_POLICY"),
    ("placement.decode_policy", "CACHEWAY_DECODE_POLICY"),
)
_ENDPOINT = "observability.otlp_traces_endpoint"


@dataclass(slots=True)
class Translation:
    """A command line in our words.

    Attributes:
        values: Values of our settings, by dotted key, as `router.sources.load` takes them.
        note: Treatment of flags and values of other routers; empty if there were none. It quotes no values
            but names of policies.
        problems: Reasons why the gateway must not start.
    """

    values: dict[str, Any]
    note: str = ""
    problems: list[str] = field(default_factory=list)


def translated(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Sequence[str]],
    environ: Mapping[str, str],
    keys: Mapping[str, str],
) -> Translation:
    """Translate a command line.

    Args:
        ours: Values of our flags, by dotted key.
        theirs: Values of flags in `FLAGS`, in the order in which they were given.
        environ: The environment: it may name the policies that options are for.
        keys: Our flags' dotted keys.
    """
    result = Translation(dict(ours))
    taken = _policy_names(result.values)
    taken += _endpoint(result.values)
    idle: dict[str, list[str]] = {}
    # A flag that stands for a value is weaker than one that gives it.
    for flag, given in sorted(theirs.items(), key=lambda each: bool(FLAGS[each[0]].value)):
        row = FLAGS[flag]
        if row.verdict == "refused" or (row.only and not set(given) <= set(row.only)):
            result.problems.append(_refusal(row))
        elif row.verdict == "accepted":
            idle.setdefault(row.says, []).append(flag)
        elif row.ours.endswith("="):
            _option(result.values, row, given, environ, taken, idle)
        else:
            _take(result, row, given[-1:] if row.values == "one" else given, keys[row.ours], taken)
    parts = [f"taken as others: {', '.join(taken)}"] if taken else []
    if idle:
        listed = "; ".join(f"{', '.join(flags)} ({why})" for why, flags in idle.items())
        parts.append(f"without effect here: {listed}")
    if parts:
        result.note = f"flags of another router, {'. '.join(parts)}. See {PAGE}"
    return result


def _refusal(row: PeerFlag) -> str:
    if row.only:
        return f"{row.flag} can only be {', '.join(row.only)} here; name workers with --worker-urls"
    return f"there is no flag {row.flag}; {row.says}"


def _policy_names(values: dict[str, Any]) -> list[str]:
    """Replace names of policies; return the new name of each."""
    became = []
    for key, names in _NAMES.items():
        name = values.get(key)
        if isinstance(name, str) and name in names and name not in POLICIES:
            values[key], why = names[name]
            became.append(f"policy {name} as {values[key]} ({why})")
    return became


def _endpoint(values: dict[str, Any]) -> list[str]:
    """Turn the peers' form of a collector, ``HOST:4317``, into ours."""
    endpoint = values.get(_ENDPOINT)
    if not isinstance(endpoint, str) or "://" in endpoint or not endpoint.endswith(":4317"):
        return []
    values[_ENDPOINT] = f"http://{endpoint.removesuffix('4317')}4318"
    return ["the collector's gRPC port 4317 as 4318 (spans go over HTTP)"]


def _option(
    values: dict[str, Any],
    row: PeerFlag,
    given: Sequence[str],
    environ: Mapping[str, str],
    taken: list[str],
    idle: dict[str, list[str]],
) -> None:
    """Take an option of a policy, if one that was chosen has it."""
    name = row.ours.removesuffix("=")
    owners = [
        policy
        for policy, rule in POLICIES.items()
        if rule.options is not None and name in rule.options.__dataclass_fields__
    ]
    chosen = {values.get(key) or environ.get(variable) for key, variable in _POLICY_SOURCES}
    if chosen.isdisjoint(owners):
        idle.setdefault(f"only --policy {' or '.join(owners)} has it", []).append(row.flag)
        return
    values["placement.policy_options"] = [*values.get("placement.policy_options", ()), f"{name}={given[-1]}"]
    taken.append(f"{row.flag} as {row.says}")


def _take(result: Translation, row: PeerFlag, given: Sequence[str], key: str, taken: list[str]) -> None:
    """Give its value to our flag, unless that was given as well."""
    if key in result.values:
        if not row.value:
            result.problems.append(f"give {row.ours} or {row.flag}, not both")
        return
    if not row.value and len(given) != 1:
        if given:
            result.problems.append(f"{row.flag} takes one file here, which may hold several certificates")
        return
    result.values[key] = row.value or given[0]
    taken.append(f"{row.flag} as {row.says}")
