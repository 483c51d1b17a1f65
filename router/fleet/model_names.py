"""Models that requests name, and the names that workers list.

    listed by a worker           that name
    BASE:ADAPTER, BASE listed    BASE: SGLang's way to ask for an adapter; its cache is apart
    anything else, or nothing    the model of a fleet that serves one, as sglang-router and vllm-router do

Engines take other names than those that they list: SGLang any name, vLLM requests without one. An engine
itself refuses the names that it does not take.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from router.fleet.engine_info import ServedModel, cached_as

UnlistedModels = Literal["single", "any", "refuse"]

Lists = Sequence[Sequence[ServedModel]]
"""Models that each worker lists, in an order that is the same at all replicas."""


def listed_as(name: str, lists: Lists, rule: UnlistedModels) -> str | None:
    """Return the listed name that a request for ``name`` goes by.

    Args:
        name: The request's; empty if it has none.
        lists: Models that workers list; a worker that lists nothing yet is left out.
        rule: Handling of names that no worker lists.

    Returns:
        None: any worker may take it. ``name`` itself: no rule lets it go on.
    """
    names = {served.model_id for models in lists for served in models}
    if name in names:
        return name
    base, _, adapter = name.partition(":")
    if adapter and base in names:
        return base
    if rule == "any":
        return None
    if rule == "single":
        bases = dict.fromkeys(base for models in lists for base in _bases(models))
        if len(bases) == 1:
            return next(iter(bases))
        if not bases:
            return name or None
    return name


def adapter_of(name: str, listed: str | None) -> str:
    """Return the adapter that a name asks for beside the listed name of its base; else empty."""
    return name.removeprefix(f"{listed}:") if listed and name.startswith(f"{listed}:") else ""


def _bases(models: Sequence[ServedModel]) -> Iterable[str]:
    """Yield a worker's models without adapters, each by the first of its names."""
    for served in models:
        if not served.parent and cached_as(models, served.model_id) == served.model_id:
            yield served.model_id
