"""Reads requests, and decides on their models while it does.

A body is decoded once. The name in it is replaced before the prompt gets its identity, so that requests for
an alias and for its model share caches. A request that a split gives to another model is read once more, as
one of that model.
"""

from collections.abc import Callable, Sequence

import msgspec

from router.fleet import Core
from router.gateway import RequestReader
from router.gateway.endpoints import Endpoint
from router.gateway.large import Parsing, parse_in_steps
from router.gateway.parsing import ModelChoice, ParsedRequest
from router.gateway.reader import DoorPort
from router.metric_families import MODEL_SPLITS
from router.metrics import Metrics
from router.models.adapters import Adapters
from router.models.aliases import Aliases, Resolved
from router.models.choice import Choice
from router.models.labels import LabelIndex
from router.models.splits import Drawn, Splits
from router.proxy import Header
from router.settings import Settings
from router.tenant import Tenant

SessionOf = Callable[[ParsedRequest, Sequence[Header]], str]
"""Returns the name of a request's session; empty without one."""


class ModelReader(RequestReader):
    """The rules for requests of clients, with those of models.

    Attributes:
        aliases: None if there are none; ``splits`` likewise.
        session_of: Names a request's session for its split; None without sessions (`router.sessions`).
    """

    def __init__(
        self, settings: Settings, core: Core, metrics: Metrics, *, door: DoorPort, traced: bool = False
    ) -> None:
        self._core, self._labels, self._metrics = core, LabelIndex(core), metrics
        self.aliases: Aliases | None = None
        self.splits: Splits | None = None
        self.adapters: Adapters | None = None
        self.session_of: SessionOf | None = None
        super().__init__(
            settings,
            cached_as=self._cached_as,
            listed_as=self._listed_as,
            door=door,
            traced=traced,
        )

    def use(self, settings: Settings) -> None:
        """Apply new settings to later requests."""
        super().use(settings)
        rules, core = settings.models, self._core
        self.aliases = Aliases(rules.aliases, core.registry.lists) if rules.aliases else None
        self.splits = (
            Splits(rules.splits, core, self.hasher, self._labels, self._count) if rules.splits else None
        )
        self.adapters = Adapters(rules.adapters, core) if rules.adapters else None
        self.renames = bool(rules.aliases or rules.splits or rules.adapters)
        self.parse = self._parse_renamed if self.renames else self.identifier.parse
        self.identifier.listed_as = core.registry.listed_as if self.adapters is None else self._listed_as

    def _parse_renamed(
        self, endpoint: Endpoint, body: bytes, tenant: Tenant, headers: Sequence[Header] = ()
    ) -> ParsedRequest:
        naming = Naming(self.aliases, self.adapters)
        parsed = self.identifier.parse(endpoint, body, tenant=tenant, rename=naming)
        drawn = self._drawn(parsed, headers)
        if drawn is not None and drawn.model:
            other = Renamed(drawn.model)
            parsed = self.identifier.parse(endpoint, body, tenant=tenant, rename=other)
        return naming.chosen(parsed, drawn)

    def parse_in_steps(
        self,
        endpoint: Endpoint,
        body: bytes,
        tenant: Tenant,
        headers: Sequence[Header] = (),
        made: ModelChoice | None = None,
    ) -> Parsing:
        """Do the same in steps; a choice that was ``made`` stays: the rest of an answer is its model's."""
        if not self.renames and made is None:
            return super().parse_in_steps(endpoint, body, tenant)
        return self._parse_in_steps(endpoint, body, tenant, headers, made)

    def chosen(self, parsed: ParsedRequest, headers: Sequence[Header] = ()) -> ParsedRequest:
        """Return a request without JSON with the model that serves it."""
        if not self.renames or not parsed.model:
            return parsed
        naming = Naming(self.aliases, self.adapters)
        parsed = msgspec.structs.replace(parsed, model=naming(parsed.model))
        listed = self._listed_as(parsed.model or "") or None
        drawn = self._drawn(msgspec.structs.replace(parsed, model=listed), headers)
        if drawn is not None and drawn.model:
            parsed = msgspec.structs.replace(parsed, model=drawn.model)
        return naming.chosen(parsed, drawn)

    def _drawn(self, parsed: ParsedRequest, headers: Sequence[Header]) -> Drawn | None:
        if self.splits is None:
            return None
        session = parsed.session if self.session_of is None else self.session_of(parsed, headers)
        return self.splits.drawn(parsed, session)

    def _parse_in_steps(
        self,
        endpoint: Endpoint,
        body: bytes,
        tenant: Tenant,
        headers: Sequence[Header],
        made: ModelChoice | None,
    ) -> Parsing:
        naming = Naming(self.aliases, self.adapters)
        parsed = yield from parse_in_steps(self.identifier, endpoint, body, tenant=tenant, rename=naming)
        drawn = made.drawn if isinstance(made, Choice) else self._drawn(parsed, headers)
        if drawn is not None and drawn.model:
            other = Renamed(drawn.model)
            parsed = yield from parse_in_steps(self.identifier, endpoint, body, tenant=tenant, rename=other)
        if made is not None:
            return msgspec.structs.replace(parsed, choice=made)
        return naming.chosen(parsed, drawn)

    def _listed_as(self, name: str) -> str | None:
        adapter = "" if self.adapters is None else self.adapters.named(name)
        return adapter or self._core.registry.listed_as(name)

    def _cached_as(self, name: str) -> str:
        adapter = "" if self.adapters is None else self.adapters.named(name)
        return adapter or self._core.registry.cached_as(name)

    def _count(self, model: str, part: str) -> None:
        self._metrics.counts[MODEL_SPLITS].add((model, part))


class Renamed:
    """Another model for a request, in place of the client's (`router.gateway.parsing.Rename`)."""

    __slots__ = ("_model",)

    def __init__(self, model: str) -> None:
        self._model = model

    def __call__(self, asked: str) -> str:
        """Return the other model."""
        return self._model


class Naming:
    """The model of one request (`router.gateway.parsing.Rename`)."""

    __slots__ = ("_adapters", "_aliases", "_asked", "_resolved")

    def __init__(self, aliases: Aliases | None, adapters: Adapters | None) -> None:
        self._aliases, self._adapters = aliases, adapters
        self._asked, self._resolved = "", Resolved("")

    def __call__(self, asked: str) -> str:
        """Return the name, in the body, of the model that serves a name."""
        self._asked = asked
        self._resolved = Resolved(asked) if self._aliases is None else self._aliases.resolve(asked)
        model = self._resolved.model
        adapter = "" if self._adapters is None else self._adapters.named(model)
        return model if self._adapters is None or not adapter else self._adapters.written(adapter)

    def chosen(self, parsed: ParsedRequest, drawn: Drawn | None) -> ParsedRequest:
        """Return the request with the decision."""
        alias = self._resolved.alias
        if not alias and drawn is None:
            return parsed
        renamed = bool(alias) or (drawn is not None and bool(drawn.model))
        choice = Choice(self._asked if renamed else "", alias, drawn)
        return msgspec.structs.replace(parsed, choice=choice)
