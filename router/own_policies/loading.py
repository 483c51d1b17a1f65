"""From a name to a rule that places requests: import, signature, trial.

    --policy my_package.rules:calm           a function, or an object that can be called
    --policy calm                            an entry point of the group ``cacheway.policies``

Importing runs the user's code with the rights of the gateway. So names come from the command line, the
environment or the file of settings only, at the start; the admin API and the shared log choose among what is
loaded, and import nothing.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from math import inf, isfinite
from typing import Any

from policies import POLICIES, Rule, is_own
from policies import option as declared_option
from router.lean_imports import complete_imports
from router.own_policies.trial import trials
from router.own_policies.workers_view import OwnCosts, judged_costs

GROUP = "cacheway.policies"
"""Entry point group of installed packages that bring policies."""

UNIT = "the policy's own unit"

_TEXT_MAX = 300
"""Characters of a user's error that are repeated."""


class NotLoaded(ValueError):
    """A user's policy that cannot be used; the message gives the reason and a remedy."""


def full_name(name: str) -> str:
    """Return ``PACKAGE.MODULE:NAME`` for the name of an entry point; any other text unchanged.

    Nothing is imported. Names of the registry win over entry points.
    """
    if not name or name in POLICIES or ":" in name or not name.replace("-", "_").isidentifier():
        return name
    found = entry_points(group=GROUP, name=name)
    return next(iter(found)).value.split("[")[0].strip() if found else name


def rules_of(name: str) -> Mapping[str, Rule]:
    """Return the rule of a policy of a user, by its name; empty for any other policy.

    Raises:
        NotLoaded: It cannot be used.
    """
    return {name: load_rule(name)} if is_own(name) else {}


@cache
def load_rule(name: str) -> Rule:
    """Import a policy, check its signature, and try it on small fleets. It is imported once.

    Raises:
        NotLoaded: It cannot be used.
    """
    if not is_own(name):
        raise NotLoaded(f"policy {name[:100]!r} is not of the form PACKAGE.MODULE:NAME")
    call = _imported(name)
    options = _options(name, call)
    costs = OwnCosts(call, judged_costs)
    for request, candidates in trials():
        try:
            costs(request, candidates)
        except (Exception, SystemExit) as error:
            raise NotLoaded(
                f"policy {name}: it fails on a trial fleet of {len(candidates)}: {told(error)}"
            ) from error
    unit = getattr(call, "unit", UNIT)
    return Rule(
        _with_options(costs) if options is not None else costs,
        options,
        uses_cache=True,
        unit=unit[:100] if isinstance(unit, str) else UNIT,
        left_out="is left out by the policy",
    )


def told(error: BaseException) -> str:
    """Return a user's error in one bounded line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


def _with_options(costs: OwnCosts) -> Callable[..., Any]:
    def with_options(request: Any, candidates: Any, options: Any) -> Any:
        return costs(request, candidates, **vars(options))

    return with_options


def _imported(name: str) -> Callable[..., object]:
    module_name, _, path = name.partition(":")
    complete_imports()
    try:
        found: Any = import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise NotLoaded(
                f"policy {name}: Python finds no module {missing}; install its package, or name its folder "
                "in PYTHONPATH, for example PYTHONPATH=."
            ) from error
        raise NotLoaded(f"policy {name}: its module cannot be imported: {told(error)}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise NotLoaded(f"policy {name}: module {module_name} has no {path}")
        found = getattr(found, part)
    if inspect.isclass(found):
        raise NotLoaded(f"policy {name}: it is a class; make an instance in the module and name that")
    if not callable(found):
        raise NotLoaded(f"policy {name}: it is {type(found).__name__}, and cannot be called")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        raise NotLoaded(f"policy {name}: it must return the costs; it may not be async or a generator")
    call: Callable[..., object] = found
    return call


def _options(name: str, call: Callable[..., object]) -> type[Any] | None:
    """Return the dataclass of a policy's options, its keyword-only arguments; None if it has none."""
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError) as error:
        raise NotLoaded(f"policy {name}: its signature cannot be read") from error
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise NotLoaded(
            f"policy {name}: it is called as policy(request, workers), which it does not take: {error}"
        ) from error
    options = []
    for each in signature.parameters.values():
        if each.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        default = each.default
        if isinstance(default, bool) or not isinstance(default, int | float) or not isfinite(default):
            raise NotLoaded(f"policy {name}: its option {each.name} needs a finite number as its default")
        metadata = declared_option(0.0, low=-inf).metadata
        options.append((each.name, float, field(default=float(default), metadata=metadata)))
    return make_dataclass("OwnOptions", options, frozen=True) if options else None
