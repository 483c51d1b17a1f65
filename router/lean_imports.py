"""Imports of a gateway's process, without what it never uses: 13 MB of resident memory.

Every process of the command imports so: the first by `router.__main__`, and those of ``--workers`` by
`call_lean`, in which they start (`router.supervisor`).
"""

import gc
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

UNUSED_MODULES = (
    "httpx._main",  # httpx's command-line tool, 4 MB with rich
    "opentelemetry.sdk.metrics",  # for redis-py's metrics of itself, 1.8 MB; spans do without
    "pydantic.v1",  # for FastAPI's models of that version, 2.4 MB
)
"""Modules that libraries import where they are installed, and that the gateway never uses.

Each library provides for their absence. The policies of users may import them (`complete_imports`).
"""

DEFERRED_MODULES = (
    "html",  # entities, for error pages of Starlette, 0.4 MB
    "logging.config",  # for uvicorn's logs, 0.3 MB
    "redis",  # clients, commands and clusters, 4.3 MB with the next one
    "redis.asyncio",
)
"""Modules whose names the gateway never asks for; of packages it imports modules within.

Their code runs when other code asks, and before the code of users (`complete_imports`).
"""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Import without `UNUSED_MODULES`, and without garbage collections: imported objects stay.

    Collections take 8 % of the start's CPU.
    """
    for name in UNUSED_MODULES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    for name in DEFERRED_MODULES:
        if name not in sys.modules:
            _defer(name)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Deferred(ModuleType):
    """Module that runs its code when the first of its names is asked for, and that of its package before.

    `importlib.util.LazyLoader` would run a package's code for each module within.
    """

    def __getattr__(self, name: str) -> Any:
        for module in (sys.modules.get(self.__name__.rpartition(".")[0]), self):
            _run(module)
        return getattr(self, name)


def _run(module: ModuleType | None) -> None:
    if isinstance(module, _Deferred):
        module.__class__ = ModuleType  # type: ignore[assignment]
        assert module.__spec__ is not None
        assert module.__spec__.loader is not None
        module.__spec__.loader.exec_module(module)


def complete_imports() -> None:
    """Let code of users import what was left out, and run deferred modules before it.

    That code may begin with a module within a package, such as `redis.client`, which needs its package run
    before itself; or it may ask in several threads at once.
    """
    for name in DEFERRED_MODULES:
        _run(sys.modules.get(name))
    for name, module in dict[str, object](sys.modules).items():
        if module is None:
            del sys.modules[name]


def _defer(name: str) -> None:
    spec = find_spec(name)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    module.__class__ = _Deferred
    package, _, child = name.rpartition(".")
    if package:
        setattr(sys.modules[package], child, module)


def call_lean(pickled: bytes) -> None:
    """Import what a pickled function and the tuple of its arguments need, and call it."""
    with lean_imports():
        function, arguments = pickle.loads(pickled)  # noqa: S301 - our own parent wrote it
    function(*arguments)
