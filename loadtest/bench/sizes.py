"""Length of every container that a state holds, found by walking the attributes of our own classes.

A list of watched maps would miss the one that was added last week. Containers of equal objects in a list or a
dict are summed:

    FleetState.loads.requests            312
    FleetState.tree.holdings[].used     8040

The walk enters a container only if it holds containers or objects of our own, and never the nodes of the
prefix tree, which `PrefixTree.nodes` and ``blocks`` count.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from radix.node import Node

OWN_PACKAGES = ("router", "policies", "radix")
LOOKED_INTO_MAX = 1024
"""A longer container holds many small things, not a few that hold much."""

_CONTAINERS = (dict, list, set, frozenset, deque, bytearray)


def container_sizes(root: object) -> dict[str, int]:
    """Lengths of all containers that an object of one of our packages leads to, by path."""
    sizes: dict[str, int] = {}
    seen = {id(root)}
    _walk(root, type(root).__name__, sizes, seen)
    return sizes


def _walk(item: object, path: str, sizes: dict[str, int], seen: set[int]) -> None:
    for name, value in _attributes(item):
        _note(value, f"{path}.{name}", sizes, seen)


def _note(value: object, path: str, sizes: dict[str, int], seen: set[int]) -> None:
    if id(value) in seen:
        return
    if isinstance(value, np.ndarray):
        sizes[path] = sizes.get(path, 0) + value.size
    elif isinstance(value, _CONTAINERS):
        seen.add(id(value))
        sizes[path] = sizes.get(path, 0) + len(value)
        if len(value) <= LOOKED_INTO_MAX and not isinstance(value, bytearray):
            for inner in value.values() if isinstance(value, dict) else value:
                _note(inner, f"{path}[]", sizes, seen)
    elif type(value).__module__.partition(".")[0] in OWN_PACKAGES and not isinstance(value, Node):
        seen.add(id(value))
        _walk(value, path, sizes, seen)


def _attributes(item: object) -> Iterable[tuple[str, object]]:
    names = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
    for name in [*names, *getattr(item, "__dict__", ())]:
        if not name.startswith("__") and hasattr(item, name):
            yield name, getattr(item, name)
