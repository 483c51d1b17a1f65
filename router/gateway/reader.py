"""Reads what a request says of itself: whose it is, its id, deadline, class, and the identity of its prompt.

    headers ──noted──> tenant, client's id, deadline, flow (`CLASS/TENANT`), whether workers are hidden
    body    ──parse──> `ParsedRequest`, in steps if it is large

It knows the rules for clients and nothing of workers or of other requests.
"""

from collections.abc import Callable, Sequence

from router.gateway.deadlines import TIMEOUT_HEADER, timeout_s_of
from router.gateway.endpoints import ENCODER_PATHS, Endpoint
from router.gateway.forwarding import CONTEXT_HEADERS, Forwarding
from router.gateway.hops import HOPS_HEADER
from router.gateway.identity import PromptHasher
from router.gateway.large import Parsing, parse_in_steps
from router.gateway.parsing import Identifier, ParsedRequest
from router.gateway.priorities import PRIORITY_HEADER, Priorities
from router.gateway.request_ids import request_ids
from router.proxy import Header
from router.settings import Settings
from router.tenants import Door, Keyring, Tenant

REQUEST_ID_BYTES_MAX = 256
"""A longer request id from a client is ignored: it would go into every log line."""

ENDPOINTS: dict[bytes, Endpoint] = {endpoint.value.encode(): endpoint for endpoint in Endpoint}
"""The endpoint of each proxied path that a client may ask."""

_PROXIED = ENCODER_PATHS | ENDPOINTS.keys()


class RequestReader:
    """The rules for what clients send.

    Args:
        settings: The effective settings.
        cached_as: Under which name engines cache what a request calls a model.
        keys: Of tenants; None without a keys file.
        traced: Whether the trace that a request is part of is asked for.

    Attributes:
        door: Knows keys and tenants.
        forwarding: Which of a request's headers go to its worker.
        priorities: The classes of requests.
        identifier: Parses bodies.
        hides: Whether answers tell nothing of workers to clients without a key of their own.
        next_request_id: Makes the id that a request has at its workers.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        cached_as: Callable[[str], str],
        keys: Keyring | None = None,
        traced: bool = False,
    ) -> None:
        key = settings.server.api_key
        self.door = Door(
            admin_key=key.get_secret_value().encode() if key is not None else None,
            tenant_header=settings.tenancy.tenant_header.encode(),
            keys=keys,
        )
        self.forwarding = Forwarding(
            passes_keys=settings.fleet.worker_api_key is None and not self.door.hands_out_keys
        )
        block_tokens = settings.placement.block_tokens
        self.identifier = Identifier(
            namespace=settings.shared.namespace,
            block_tokens=block_tokens,
            block_bytes=4 * block_tokens,
            cached_as=cached_as,
            handover_allowed=settings.fleet.allow_client_kv_transfer,
        )
        self.identifier.finds_roots = any(model.tokenizer for model in settings.placement.models.values())
        self._id_headers = tuple(name.encode() for name in settings.server.request_id_headers)
        own = (PRIORITY_HEADER, TIMEOUT_HEADER, HOPS_HEADER)
        self._noted = frozenset((*self._id_headers, *own)) | self.door.header_names
        if traced:
            self._noted |= CONTEXT_HEADERS
        self.hides = settings.tenancy.answer_details == "none"
        self.next_request_id: Callable[[], bytes] = request_ids().__next__
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Read by these settings from now on."""
        queue = settings.queue
        self.priorities = Priorities(
            tuple(queue.classes), queue.default_class, low_first=queue.low_values_first
        )
        self._default_flow = f"{queue.default_class}/"

    @property
    def hasher(self) -> PromptHasher:
        """Identifies prompts."""
        return self.identifier.hasher

    # Headers.

    def noted(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Those of a request's headers that the methods below ask for."""
        return [header for header in headers if header[0] in self._noted]

    def judge(self, headers: Sequence[Header]) -> None:
        """Find out whether a request may send a body (`router.proxy.JudgeHead`).

        Raises:
            InvalidKey: If a key is needed, and this is none of ours.
        """
        self.door.tenant_of(self.noted(headers))

    def clients_id(self, headers: Sequence[Header]) -> bytes:
        """Return the client's own id of a request; empty if it names none. No worker sees it."""
        for wanted in self._id_headers if headers else ():
            for name, value in headers:
                if name == wanted and 0 < len(value) <= REQUEST_ID_BYTES_MAX and value.isascii():
                    return value
        return b""

    def request_id_of(self, headers: Sequence[Header]) -> bytes:
        """Return the client's own id of a request, or a new one."""
        return self.clients_id(headers) or self.next_request_id()

    def hides_workers(self, headers: Sequence[Header]) -> bool:
        """Whether the answer to a request tells nothing of workers and their caches."""
        return self.hides and not self.door.holds_own_key(headers)

    def timeout_s_of(self, headers: Sequence[Header]) -> float:
        """Seconds after which the client wants no answer any more; 0 if it does not say.

        Raises:
            ClientError: If what it says is no time.
        """
        for name, value in headers:
            if name == TIMEOUT_HEADER:
                return timeout_s_of(value)
        return 0.0

    def flow_of(self, parsed: ParsedRequest, tenant: Tenant, headers: Sequence[Header]) -> str:
        """Who is to be treated fairly: the request's class and tenant.

        A tenant with a class of its own may ask for a less urgent one, and not for more.

        Raises:
            ClientError: If a header names no class.
        """
        for name, value in headers:
            if name == PRIORITY_HEADER:
                wanted = self.priorities.named(value)
                return f"{self.priorities.allowed(wanted, tenant.priority)}/{tenant.name}"
        if parsed.priority or parsed.service_tier:
            wanted = self.priorities.stated(parsed.priority, parsed.service_tier)
            return f"{self.priorities.allowed(wanted, tenant.priority)}/{tenant.name}"
        if tenant.priority:
            return f"{tenant.priority}/{tenant.name}"
        return self._default_flow + tenant.name

    # Bodies.

    def parse(self, endpoint: Endpoint, body: bytes, tenant: Tenant) -> ParsedRequest:
        """Parse and identify a request.

        Raises:
            ClientError: If it is not what the endpoint takes.
        """
        return self.identifier.parse(endpoint, body, tenant=tenant)

    def parse_in_steps(self, endpoint: Endpoint, body: bytes, tenant: Tenant) -> Parsing:
        """Do what `parse` does, in steps."""
        return parse_in_steps(self.identifier, endpoint, body, tenant=tenant)


def is_proxied(method: bytes, path: bytes) -> bool:
    """Whether a route is served by an exchange; all others belong to the application."""
    return method == b"POST" and path in _PROXIED
