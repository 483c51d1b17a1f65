"""What all exchanges of a process share: the rules, the fleet, and how to parse."""

import asyncio
import itertools
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from policies import (
    ANY_BUCKET,
    GRACE_LAGS,
    GRACE_S,
    Admission,
    Decider,
    EarlyRejection,
    FleetState,
    Lanes,
    Matchmaker,
    Offload,
    Offloading,
    Order,
    Pairing,
    RetryBudget,
    Shadow,
    Slots,
    WaitEnd,
    Waiting,
    class_of,
    exceeded_tokens,
    make_policy,
    model_and_bucket,
)
from radix import FULL_ATTENTION, AttentionProfile
from router.errors import ClientError, NoWorker, RequestRejected, RouterError
from router.fleet import LinkWatch, Registry
from router.gateway.deadlines import TIMEOUT_HEADER, timeout_s_of
from router.gateway.endpoints import ENCODER_PATHS, Endpoint
from router.gateway.exchange import RequestExchange
from router.gateway.feedback import Feedback
from router.gateway.forwarding import CONTEXT_HEADERS, Forwarding
from router.gateway.hops import HOPS_HEADER
from router.gateway.identity import PromptHasher
from router.gateway.inflight import Inflight, Timed
from router.gateway.lane import Lane
from router.gateway.large import Parsing, parse_in_steps
from router.gateway.parsing import Identifier, ParsedRequest
from router.gateway.prefill_ends import PrefillEnds
from router.gateway.priorities import PRIORITY_HEADER, Priorities
from router.gateway.recent_decisions import RecentDecisions
from router.gateway.refusals import Refusals
from router.gateway.request_ids import request_ids
from router.gateway.rules import (
    admission_rules,
    decode_worker_policy,
    offload_rules,
    placement_policy,
    prefill_policy,
    redispatch_rules,
    room_rules,
    service_level,
)
from router.gateway.stalls import Stalls
from router.gateway.tracer import Tracer
from router.gateway.waiting_room import WaitingRoom
from router.handover import Handover
from router.metrics import Metrics
from router.proxy import ClientConnection, ClientRequest, Exchange, Header, StartExchange
from router.request_trace import TraceLine
from router.settings import PlacementSettings, Settings
from router.shared import LogClock, Publish
from router.tenants import Door, Keyring, Limiter, Tenant

if TYPE_CHECKING:
    from router.gateway.spans import Spans
    from router.tokenizing.tokenizing import Tokenizing

RENEWED_AT_ONCE = 200
"""Reservations renewed in one turn of the loop, a few milliseconds."""

REQUEST_ID_BYTES_MAX = 256
"""A longer request id from a client is ignored: it would go into every log line."""


class Gateway:
    """Starts exchanges (`router.proxy.StartExchange`)."""

    def __init__(
        self,
        settings: Settings,
        *,
        replica: str,
        fleet: FleetState,
        registry: Registry,
        publish: Publish,
        clock: LogClock,
        metrics: Metrics,
        request_log: Callable[[dict[str, object]], None],
        loop: asyncio.AbstractEventLoop,
        now_s: Callable[[], float] = time.monotonic,
        trace_request: Callable[[TraceLine], None] | None = None,
        keys: Keyring | None = None,
        log_lag_s: Callable[[], float] = lambda: 0.0,
        limiter: Limiter | None = None,
        handovers: Mapping[str, Handover] = MappingProxyType({}),
        requests_max: int = sys.maxsize,
        spans: "Spans | None" = None,
    ) -> None:
        self.replica = replica
        self.fleet = fleet
        self.registry = registry
        self.publish = publish
        self.clock = clock
        self.metrics = metrics
        self.request_log = request_log
        self.handovers = handovers
        """By protocol, how prefill workers hand over to decode workers."""
        self.limiter = limiter
        """Keeps tenants to their limits; None where nobody has any."""
        self.loop = loop
        self.now_s = now_s
        """Monotonic seconds; not the loop's time, of which uvloop knows whole milliseconds only."""
        self.exchanges = Inflight(loop, now_s, settings.server.request_timeout_s)
        self.prefill_ends = PrefillEnds(loop, now_s)
        self.link_watch = LinkWatch(fleet, publish=publish, now_us=clock.now_us, replica=replica)
        block_tokens = settings.placement.block_tokens
        block_bytes = 4 * block_tokens
        self._log_due = 0.0
        self.retry_budget = RetryBudget(settings.reliability.retry_budget_ratio)
        self.feedback = Feedback(
            fleet, publish=publish, replica=replica, bytes_per_token=settings.placement.bytes_per_token
        )
        self.stalls = Stalls(
            fleet,
            self.feedback,
            factor=settings.reliability.stall_factor,
            floor_s=settings.reliability.stall_floor_s,
            loop=loop,
            now_s=now_s,
            now_us=clock.now_us,
        )
        self._identifier = Identifier(
            namespace=settings.shared.namespace,
            block_tokens=block_tokens,
            block_bytes=block_bytes,
            cached_as=registry.cached_as,
            handover_allowed=settings.fleet.allow_client_kv_transfer,
        )
        self.admission = Admission(admission_rules(settings), fleet)
        self._matchmaker = Matchmaker(fleet, self.admission, self.feedback.decode_fit)
        self._lanes = Lanes(self._slots_of, self._pairing_of, self._matchmaker)
        fleet.tickets.watched = replica
        self.room = WaitingRoom(
            replica=replica,
            fleet=fleet,
            admission=self.admission,
            lanes=self._lanes,
            rules=room_rules(settings),
            publish=publish,
            now_us=clock.now_us,
            call_later=loop.call_later,
            grace_s=lambda: max(GRACE_S, GRACE_LAGS * log_lag_s()),
            ended=self._wait_ended,
        )
        self.refusals = Refusals(clock.now_us)
        self.decisions = RecentDecisions()
        self.decider = Decider(
            fleet,
            placement_policy(settings.placement),
            self.feedback,
            replica=replica,
            next_attempt_id=self.next_attempt_id,
            block_tokens=block_tokens,
            block_bytes=block_bytes,
            expected_output_tokens=settings.placement.expected_output_tokens,
            matchmaker=self._matchmaker,
            offloading=Offloading(fleet, Offload(fleet.links), replica=replica),
            limits=registry.limits,
        )
        self._shadowed: tuple[str, dict[str, float], float] = ("", {}, 0.0)
        self.tracer = None
        """Notes every request for replay; None if nobody asked for that."""
        if trace_request is not None:
            self.tracer = Tracer(trace_request, self._identifier.hasher, self.feedback, clock.now_us)
        self.spans = spans
        """Makes the spans of requests; None while tracing is off."""
        self.lane = Lane(loop.call_soon)
        self.tokenizing: Tokenizing | None = None
        """Finds out the token ids of prompts; None where no model has a tokenizer (`tokenize_with`)."""
        self.encode: StartExchange = _no_encoders
        """Serves what language workers ask of encoders (`router.encoding`)."""
        key = settings.server.api_key
        self.door = Door(
            admin_key=key.get_secret_value().encode() if key is not None else None,
            tenant_header=settings.tenancy.tenant_header.encode(),
            keys=keys,
        )
        self._id_headers = tuple(name.encode() for name in settings.server.request_id_headers)
        own = (PRIORITY_HEADER, TIMEOUT_HEADER, HOPS_HEADER)
        self._noted = frozenset((*self._id_headers, *own)) | self.door.header_names
        if spans is not None:
            self._noted |= CONTEXT_HEADERS
        self._hides = settings.tenancy.answer_details == "none"
        self._inflight_max = requests_max
        self._at_workers = 0
        self.forwarding = Forwarding(
            passes_keys=settings.fleet.worker_api_key is None and not self.door.hands_out_keys
        )
        self._profiles = {
            name: AttentionProfile(model.attention, model.window_tokens, model.retained_interval_tokens)
            for name, model in settings.placement.models.items()
        }
        self._default_profile = self._profiles.get("*", FULL_ATTENTION)
        # Ids of attempts are short, since the log carries them, and random per process, since a
        # restarted replica keeps its name.
        self._attempt_prefix = secrets.token_urlsafe(6)
        self._attempts = itertools.count()
        self.next_request_id: Callable[[], bytes] = request_ids().__next__
        """Makes the id that a request has at its workers."""
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Go by these settings from now on; what cannot change while it serves stays as it was.

        All of it between two decisions. What waits keeps its deadline, and what is in flight its worker.
        """
        placement, queue, reliability = settings.placement, settings.queue, settings.reliability
        self.expected_output_tokens = placement.expected_output_tokens
        self.request_timeout_s = self.exchanges.timeout_s = settings.server.request_timeout_s
        self.request_logs = settings.observability.request_logs
        self.request_log_ratio = settings.observability.request_log_ratio
        self.retry_after_s = max(1.0, min(settings.fleet.health_check_interval_s, 5.0))
        self.redispatch_rules = redispatch_rules(settings)
        self.retry_budget.ratio = reliability.retry_budget_ratio
        self.feedback.bytes_per_token_default = placement.bytes_per_token
        self.stalls.use(reliability.stall_factor, reliability.stall_floor_s)
        self.priorities = Priorities(
            tuple(queue.classes), queue.default_class, low_first=queue.low_values_first
        )
        self._default_flow = f"{queue.default_class}/"
        self.room.use(room_rules(settings))
        self.admission.use(admission_rules(settings))
        self._at_workers_max = settings.server.max_concurrent_requests
        self._queues = not queue.disable_queue
        self.at_workers(0)
        self._matchmaker.policy = decode_worker_policy(placement)
        self.decider.use(
            placement_policy(placement),
            prefill_policy(placement),
            self._order(settings) if self._queues else None,
            placement.expected_output_tokens,
        )
        self._watch(placement)
        offload = settings.offload
        self.decider.offloading.use(
            offload_rules(settings), offload.threshold_tokens, remote=not offload.disable_remote_prefill
        )

    def _watch(self, placement: PlacementSettings) -> None:
        """Ask the shadow policy that these settings name; one that was asked before keeps what it found."""
        wanted = placement.shadow_policy, placement.shadow_policy_options, placement.shadow_ratio
        if wanted != self._shadowed:
            self._shadowed, self.decider.shadow = wanted, None
            if placement.shadow_policy:
                self.decider.shadow = Shadow(
                    make_policy(placement.shadow_policy, placement.shadow_policy_options),
                    self.fleet,
                    placement.shadow_ratio,
                    partial(self.metrics.shadowed, placement.shadow_policy),
                )

    def _order(self, settings: Settings) -> Order:
        """How requests take turns."""
        level = service_level(settings)
        return Order(
            self.admission,
            self._lanes,
            settings.queue.uncached_weight,
            self.registry.step_tokens,
            EarlyRejection(level, self.fleet, self.feedback.decode_fit) if level.promises else None,
        )

    def __call__(self, request: ClientRequest, connection: ClientConnection) -> Exchange:
        """Start one exchange."""
        if request.path in ENCODER_PATHS:
            return self.encode(request, connection)
        exchange = RequestExchange(self, request, connection)
        exchange.begin()
        return exchange

    def log_completed(self) -> bool:
        """Whether the request that was just completed is one of those that are logged."""
        self._log_due += self.request_log_ratio
        if self._log_due < 1.0:
            return False
        self._log_due -= 1.0
        return True

    def at_workers(self, change: int) -> None:
        """One request more, or one less, is at a worker."""
        self._at_workers += change
        self.admission.closed = 0 < self._at_workers_max <= self._at_workers

    @property
    def inflight(self) -> int:
        """Exchanges that have not ended."""
        return len(self.exchanges)

    def waiting(self) -> list[tuple[str, int, int]]:
        """For each class its name, how many requests wait here, and their uncached tokens."""
        sums = dict.fromkeys(self.priorities.names, (0, 0))
        for said in self.room.tickets():
            requests, tokens = sums[class_of(said.flow)]
            sums[class_of(said.flow)] = requests + 1, tokens + said.uncached_tokens
        return [(name, requests, tokens) for name, (requests, tokens) in sums.items()]

    def given_up(self, left_us: int) -> None:
        """The others gave this replica up although it lives: reserve again what is in flight.

        Args:
            left_us: Log time up to which its placements were dropped (`policies.Left`).
        """
        self._renew(list(self.exchanges), left_us)

    def _renew(self, exchanges: list[Timed], left_us: int) -> None:
        """Renew some reservations now and the rest a moment later, so that no request waits for all."""
        for exchange in exchanges[:RENEWED_AT_ONCE]:
            exchange.renew(left_us, max(self.clock.now_us(), left_us + 1))
        if len(exchanges) > RENEWED_AT_ONCE:
            self.loop.call_later(0, self._renew, exchanges[RENEWED_AT_ONCE:], left_us)

    @staticmethod
    def proxies(method: bytes, path: bytes) -> bool:
        """Whether a route is served by an exchange; all others belong to the application."""
        return method == b"POST" and path in _PROXIED

    def endpoint_of(self, path: bytes) -> Endpoint:
        """The endpoint of a proxied path."""
        return _BY_PATH[path]

    def noted(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Those of a request's headers that the methods below ask for."""
        return [header for header in headers if header[0] in self._noted]

    def parse(self, endpoint: Endpoint, body: bytes, tenant: Tenant) -> ParsedRequest:
        """Parse and identify a request.

        Raises:
            ClientError: If it is not what the endpoint takes.
        """
        return self._identifier.parse(endpoint, body, tenant=tenant)

    def parse_in_steps(self, endpoint: Endpoint, body: bytes, tenant: Tenant) -> Parsing:
        """Do what `parse` does, in steps."""
        return parse_in_steps(self._identifier, endpoint, body, tenant=tenant)

    @property
    def hasher(self) -> PromptHasher:
        """Identifies prompts."""
        return self._identifier.hasher

    def tokenize_with(self, tokenizing: "Tokenizing") -> None:
        """Turn prompts into token ids from now on."""
        self.tokenizing = tokenizing
        self._identifier.finds_roots = True

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

    def expected_tokens(self, parsed: ParsedRequest) -> int:
        """Tokens that a request is expected to use, of prompts and answers; 0 without a prompt."""
        if not parsed.paths:
            return 0
        prompt_tokens, output_tokens = self.decider.expected_tokens(parsed)
        return round(max(prompt_tokens, 1.0)) + round(output_tokens) * parsed.n

    def _slots_of(self, lane: str) -> Slots:
        """Who may take the requests of a lane now."""
        model, bucket = model_and_bucket(lane)
        return self.registry.eligible(model, self.clock.now_us(), bucket)

    def _pairing_of(self, lane: str) -> Pairing | None:
        """Who of them needs a partner."""
        if not self.registry.pairs.active:
            return None
        (model, bucket), now_us = model_and_bucket(lane), self.clock.now_us()
        return self.registry.pairing(self.registry.eligible(model, now_us, bucket), model, now_us, bucket)

    def _wait_ended(self, said: Waiting, how: WaitEnd, wait_s: float) -> None:
        self.metrics.wait_ended(class_of(said.flow), how.value, wait_s)

    def may_resend(self) -> bool:
        """Whether a request that met a stale connection may be sent once more; counts and pays for it."""
        if self.redispatch_rules.retries_max == 0 or not self.retry_budget.withdraw(self.now_s()):
            return False
        self.metrics.redispatched("stale_connection")
        return True

    def nobody_for(self, model: str | None, bucket: int = ANY_BUCKET) -> ClientError | NoWorker:
        """Why no worker can take a request: its model is not served here, it is too long, or not now."""
        if model is not None and not self.registry.knows(model):
            return ClientError(
                f"The model {model[:200]!r} is not served here; GET /v1/models lists those that are.",
                code="model_not_found",
                param="model",
                status=404,
            )
        lengths = self.fleet.buckets.lengths
        if lengths is not None and bucket >= len(lengths) and not self.registry.fits(model, bucket):
            return ClientError(
                f"The prompt and its expected answer are longer than {lengths.tokens_max[-1]} tokens, the "
                "most that any worker takes.",
                code="context_length_exceeded",
            )
        message = (
            f"No worker for the model {model!r} can take a request now."
            if model
            else "No worker can take a request now."
        )
        if exceeded := exceeded_tokens(bucket):
            message += f" This one is for those that hold more than {exceeded} tokens."
        missing = self.registry.pairs.missing((model, bucket))
        return NoWorker(f"{message} {missing}".rstrip(), retry_after_s=self.retry_after_s)

    def profile_of(self, model: str | None) -> AttentionProfile:
        """What of a prefix match this model can reuse."""
        return self._profiles.get(model or "", self._default_profile)

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
        return self._hides and not self.door.holds_own_key(headers)

    def next_attempt_id(self) -> str:
        """A log-wide unique id of one attempt."""
        return f"{self._attempt_prefix}{next(self._attempts):x}"

    def judge(self, headers: Sequence[Header]) -> None:
        """Find out whether a request may send a body (`router.proxy.JudgeHead`).

        Raises:
            InvalidKey: If a key is needed, and this is none of ours.
        """
        self.door.tenant_of(self.noted(headers))

    def admit(self, headers: Sequence[Header], refusal: RouterError | None = None) -> Tenant:
        """Find out whose a request is, and check the limits of concurrent requests.

        Args:
            headers: Those that were noted.
            refusal: Why its body was not read, if it was not.

        Raises:
            InvalidKey: If a key is needed, and this is none of ours.
            RouterError: The refusal, if there is one.
            RequestRejected: If there are files open for no more, or too many are sent and none may wait.
        """
        tenant = self.door.tenant_of(headers)
        if refusal is not None:
            raise refusal
        full = 0 < self._at_workers_max <= self._at_workers and not self._queues
        if full or len(self.exchanges) > self._inflight_max:
            raise RequestRejected(
                f"{self.inflight - 1} requests are in flight already.",
                retry_after_s=1.0,
                code="too_many_requests",
            )
        return tenant


def _no_encoders(request: ClientRequest, connection: ClientConnection) -> Exchange:
    raise AssertionError("nobody serves the calls of encoders")


_BY_PATH: dict[bytes, Endpoint] = {endpoint.value.encode(): endpoint for endpoint in Endpoint}
_PROXIED = ENCODER_PATHS | _BY_PATH.keys()
