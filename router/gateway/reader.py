"""Reads requests: tenant, id, deadline, class, and the identity of the prompt.

    headers ──relevant──> tenant, client's id, deadline, flow (`CLASS/TENANT`), whether workers are hidden
    body    ──parse──> `ParsedRequest`, in steps if it is large

**Deadline.** ``x-request-timeout`` is seconds (``30``, ``2.5``, ``30s``, ``500ms``) from the last byte of the
request. A request whose answer has not begun by then is expired with 408, here or at a worker; an answer that
has begun ends with an error, as after ``server.request_timeout_s``.

**Ids.** vLLM takes ``x-request-id`` for its own id (``_base_request_id`` in
``entrypoints/openai/engine/serving.py``), mixes up two requests of one id, and finds the blocks of a
hand-over by it. So workers get a random id of ours; the client's own goes into its answer, the log and the
views only.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Protocol

from router.errors import ClientError
from router.gateway.endpoints import Endpoint
from router.gateway.forwarding import CONTEXT_HEADERS, HOPS_HEADER, Forwarding
from router.gateway.identity import PromptHasher
from router.gateway.large import Parsing, parse_in_steps
from router.gateway.parsing import Identifier, ModelChoice, ParsedRequest
from router.gateway.priorities import PRIORITY_HEADER, Priorities
from router.gateway.worker_names import WorkerNames
from router.proxy import Header
from router.settings import Settings
from router.tenant import Tenant

TIMEOUT_HEADER = b"x-request-timeout"

Headers = Sequence[Header]
_name_of = itemgetter(0)
_TIMEOUT = re.compile(rb"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s)?\s*")

ID_BYTES = 16
"""128 random bits: no client can guess one, and no two of a fleet are the same."""

DRAWN_AT_ONCE = 256

REQUEST_ID_BYTES_MAX = 256
"""A longer request id from a client is ignored: it would go into every log line."""


class DoorPort(Protocol):
    """Finds the tenant of a request by its headers (`router.tenants.door`).

    Attributes:
        header_names: The headers it reads.
        hands_out_keys: True if clients present keys of ours, which workers must not see.
    """

    header_names: frozenset[bytes]
    hands_out_keys: bool

    def tenant_of(self, headers: Sequence[Header]) -> Tenant:
        """Return the tenant of a request; raise InvalidKey if a key is needed, and this is none of ours."""

    def holds_own_key(self, headers: Sequence[Header]) -> bool:
        """Return True if a request carries the gateway's own key."""


class RequestReader:
    """The rules for requests of clients.

    ``cached_as`` and ``listed_as`` are those of `Identifier`; ``traced`` reads trace context headers, too. If
    it ``hides``, answers to clients without the gateway's own key do not say which worker served them, apart
    from its opaque name (``shows_names``).
    """

    def __init__(
        self,
        settings: Settings,
        *,
        cached_as: Callable[[str], str],
        listed_as: Callable[[str], str | None] = str,
        door: DoorPort,
        traced: bool = False,
    ) -> None:
        self.door = door
        self.forwarding = Forwarding(
            settings.upstream.forward_headers,
            passes_keys=settings.fleet.worker_api_key is None and not door.hands_out_keys,
        )
        block_tokens = settings.placement.block_tokens
        self.identifier = Identifier(
            namespace=settings.shared.namespace,
            block_tokens=block_tokens,
            block_bytes=4 * block_tokens,
            cached_as=cached_as,
            listed_as=listed_as,
            handover_allowed=settings.fleet.allow_client_kv_transfer,
        )
        self.identifier.finds_roots = any(model.tokenizer for model in settings.placement.models.values())
        self._id_headers = tuple(name.encode() for name in settings.server.request_id_headers)
        own = (PRIORITY_HEADER, TIMEOUT_HEADER, HOPS_HEADER)
        self._always = frozenset((*self._id_headers, *own)) | door.header_names
        if traced:
            self._always |= CONTEXT_HEADERS
        details = settings.tenancy.answer_details
        self.hides = details == "none" or (details == "names" and door.hands_out_keys)
        self.shows_names = details == "names"
        self.identifies = self.hides or door.hands_out_keys or traced
        """True if each request is to be identified, also one whose headers name nothing of ours."""
        self.names = WorkerNames(self.hasher)
        self.parse: Callable[[Endpoint, bytes, Tenant, Headers], ParsedRequest] = self.identifier.parse
        """Parses and identifies a request."""
        self.next_request_id: Callable[[], bytes] = request_ids().__next__
        self.renames = False
        """True if the model that a client asks for may be another one than serves it (`chosen`)."""
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Apply new settings to later requests."""
        queue = settings.queue
        self.forwarding.use(settings.upstream.forward_headers)
        self.priorities = Priorities(
            tuple(queue.classes), queue.default_class, low_first=queue.low_values_first
        )
        self._default_flow = f"{queue.default_class}/"
        self._noted = self._always.union(name.encode() for name in settings.placement.session_headers)

    def note(self, name: bytes) -> None:
        """Let `relevant` return a header of an option, too."""
        self._always |= {name}
        self._noted |= {name}

    @property
    def hasher(self) -> PromptHasher:
        """Identifies prompts."""
        return self.identifier.hasher

    # Headers.

    def relevant(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Return the headers that the methods below read."""
        noted = self._noted
        if noted.isdisjoint(map(_name_of, headers)):
            return ()
        return [header for header in headers if header[0] in noted]

    def judge(self, headers: Sequence[Header]) -> None:
        """Raise `InvalidKey` if a request may not send a body without a key (`router.proxy.JudgeHead`)."""
        self.door.tenant_of(self.relevant(headers))

    def clients_id(self, headers: Sequence[Header]) -> bytes:
        """Return the client's own id of a request; empty if it has none."""
        for wanted in self._id_headers if headers else ():
            for name, value in headers:
                if name == wanted and 0 < len(value) <= REQUEST_ID_BYTES_MAX and value.isascii():
                    return value
        return b""

    def request_id_of(self, headers: Sequence[Header]) -> bytes:
        """Return the client's own id of a request, or a new one."""
        return self.clients_id(headers) or self.next_request_id()

    def hides_workers(self, headers: Sequence[Header]) -> bool:
        """Return True if the answer does not say which workers served it, or by their names only."""
        return self.hides and not self.door.holds_own_key(headers)

    def timeout_s_of(self, headers: Sequence[Header]) -> float:
        """Return the client's own timeout in seconds; 0 without one."""
        for name, value in headers:
            if name == TIMEOUT_HEADER:
                return timeout_s_of(value)
        return 0.0

    def flow_of(self, parsed: ParsedRequest, tenant: Tenant, headers: Sequence[Header]) -> str:
        """Return the unit of fairness: the request's class and tenant; `ClientError` if a header names none.

        A tenant with a class of its own may ask for a less urgent one only.
        """
        wanted = ""
        for name, value in headers:
            if name == PRIORITY_HEADER:
                wanted = self.priorities.named(value)
                break
        else:
            if parsed.priority or parsed.service_tier:
                wanted = self.priorities.stated(parsed.priority, parsed.service_tier)
        if wanted:
            return f"{self.priorities.allowed(wanted, tenant.priority)}/{tenant.name}"
        if tenant.priority:
            return f"{tenant.priority}/{tenant.name}"
        return self._default_flow + tenant.name

    # Bodies.

    def chosen(self, parsed: ParsedRequest, _: Sequence[Header] = ()) -> ParsedRequest:
        """Return a request without JSON with the model that serves it (`router.models`)."""
        return parsed

    def parse_in_steps(
        self, endpoint: Endpoint, body: bytes, tenant: Tenant, _: Headers = (), __: ModelChoice | None = None
    ) -> Parsing:
        """Do the same in steps; a request that goes on has made its choice (`router.models`)."""
        return parse_in_steps(self.identifier, endpoint, body, tenant=tenant)


def timeout_s_of(value: bytes) -> float:
    """Read the value of `TIMEOUT_HEADER`, in seconds; `ClientError` if it is no time above 0."""
    match = _TIMEOUT.fullmatch(value)
    seconds = 0.0 if match is None else float(match[1]) / (1000.0 if match[2] == b"ms" else 1.0)
    if seconds <= 0:
        raise ClientError(
            f"{TIMEOUT_HEADER.decode()}: {value[:100].decode('latin-1')!r} is no time above 0; "
            "write seconds, for example 30, 2.5s or 500ms.",
            code="invalid_value",
            param=TIMEOUT_HEADER.decode(),
        )
    return seconds


def request_ids() -> Iterator[bytes]:
    """Return ids without end: ``req-`` and 32 hexadecimal digits.

    Randomness is drawn for many ids at once: 0.15 us each; a draw of its own costs 1 us.
    """
    return chain.from_iterable(iter(_drawn_ids, []))


def _drawn_ids() -> list[bytes]:
    drawn = secrets.token_hex(ID_BYTES * DRAWN_AT_ONCE).encode()
    return [b"req-" + drawn[start : start + 2 * ID_BYTES] for start in range(0, len(drawn), 2 * ID_BYTES)]
