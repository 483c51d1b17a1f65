"""Reads requests, and decides on their models while it does.

A body is decoded once. The name in it is replaced before the prompt gets its identity, so that requests for
an alias and for its model share caches.
"""

import msgspec

from router.fleet import Core
from router.gateway import RequestReader
from router.gateway.endpoints import Endpoint
from router.gateway.large import Parsing, parse_in_steps
from router.gateway.parsing import ParsedRequest
from router.gateway.reader import DoorPort
from router.models.aliases import Aliases, Resolved
from router.models.choice import Choice
from router.settings import Settings
from router.tenant import Tenant


class ModelReader(RequestReader):
    """The rules for requests of clients, with those of models.

    Attributes:
        aliases: None if there are none.
    """

    def __init__(self, settings: Settings, core: Core, *, door: DoorPort, traced: bool = False) -> None:
        self._registry = core.registry
        self.aliases: Aliases | None = None
        super().__init__(
            settings,
            cached_as=core.registry.cached_as,
            listed_as=core.registry.listed_as,
            door=door,
            traced=traced,
        )

    def use(self, settings: Settings) -> None:
        """Apply new settings to later requests."""
        super().use(settings)
        rules = settings.models
        self.aliases = Aliases(rules.aliases, self._registry.lists) if rules.aliases else None
        self.renames = self.aliases is not None

    def parse(self, endpoint: Endpoint, body: bytes, tenant: Tenant) -> ParsedRequest:
        """Parse and identify a request."""
        if self.aliases is None:
            return super().parse(endpoint, body, tenant)
        naming = Naming(self.aliases)
        return naming.chosen(self.identifier.parse(endpoint, body, tenant=tenant, rename=naming))

    def parse_in_steps(self, endpoint: Endpoint, body: bytes, tenant: Tenant) -> Parsing:
        """Do the same in steps."""
        if self.aliases is None:
            return super().parse_in_steps(endpoint, body, tenant)
        return self._parse_in_steps(Naming(self.aliases), endpoint, body, tenant)

    def chosen(self, parsed: ParsedRequest) -> ParsedRequest:
        """Return a request without JSON with the model that serves it."""
        if self.aliases is None or not parsed.model:
            return parsed
        naming = Naming(self.aliases)
        return naming.chosen(msgspec.structs.replace(parsed, model=naming(parsed.model)))

    def _parse_in_steps(self, naming: "Naming", endpoint: Endpoint, body: bytes, tenant: Tenant) -> Parsing:
        parsed = yield from parse_in_steps(self.identifier, endpoint, body, tenant=tenant, rename=naming)
        return naming.chosen(parsed)


class Naming:
    """The model of one request."""

    __slots__ = ("_aliases", "_asked", "_resolved")

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases
        self._asked, self._resolved = "", Resolved("")

    def __call__(self, asked: str) -> str:
        """Return the model that serves a name (`router.gateway.parsing.Rename`)."""
        self._asked, self._resolved = asked, self._aliases.resolve(asked)
        return self._resolved.model

    def chosen(self, parsed: ParsedRequest) -> ParsedRequest:
        """Return the request with what was decided."""
        if not self._resolved.alias:
            return parsed
        return msgspec.structs.replace(parsed, choice=Choice(self._asked, self._resolved.alias))
