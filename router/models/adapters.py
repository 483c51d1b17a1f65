"""LoRA adapters that the settings declare: their names, and the workers that should hold them.

    adapter ──rendezvous hash──> k of the workers that serve its base, the same at all replicas

A worker that comes or goes moves the adapters of that worker alone. vLLM knows an adapter by its name; SGLang
by ``BASE:NAME``, and would serve the base under any other name. So the body gets its engine's name for it.
"""

from collections.abc import Mapping

import xxhash

from router.fleet import Core, Health, LocalWorker
from router.model_rules import Adapter

DIALECT_S = 1.0
"""Time that the engine of a base is remembered: workers are too many to look at for each request."""


class Adapters:
    """The declared adapters of one gateway."""

    def __init__(self, rules: Mapping[str, Adapter], core: Core) -> None:
        self.rules = rules
        self._registry = core.registry
        self._dialects: dict[str, tuple[int, str]] = {}

    def named(self, asked: str) -> str:
        """Return the adapter that a name means, ``NAME`` or ``BASE:NAME``; empty for none."""
        if asked in self.rules:
            return asked
        base, _, name = asked.rpartition(":")
        rule = self.rules.get(name)
        return name if rule is not None and rule.base == base else ""

    def written(self, name: str) -> str:
        """Return the name by which the engines of an adapter's base know it."""
        base, now_us = self.rules[name].base, self._registry.now_us()
        until_us, engine = self._dialects.get(base, (0, ""))
        if now_us >= until_us:
            engine = next((local.engine for local in self._registry.all() if _serves(local, base)), "")
            self._dialects[base] = now_us + round(DIALECT_S * 1e6), engine
        return f"{base}:{name}" if engine == "sglang" else name

    def wanted(self, name: str) -> list[LocalWorker]:
        """Return the workers that should hold an adapter, the best first."""
        rule, seed = self.rules[name], xxhash.xxh3_64_intdigest(name.encode())
        able = [
            local
            for local in self._registry.all()
            if local.health is Health.HEALTHY and not local.worker.draining and _serves(local, rule.base)
        ]
        able.sort(key=lambda local: xxhash.xxh3_64_intdigest(local.worker.worker_id.encode(), seed))
        return able[: rule.workers]


def holds(local: LocalWorker, name: str) -> bool:
    """Return True if a worker lists a model or adapter."""
    return any(served.model_id == name for served in local.models or ())


def _serves(local: LocalWorker, base: str) -> bool:
    return any(served.model_id == base and not served.parent for served in local.models or ())
