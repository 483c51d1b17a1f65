"""All settings of an operator, as one frozen tree.

    Settings
    ├── server          the socket clients connect to, and its limits
    ├── fleet           the workers and how their health is checked
    ├── discovery       which pods of a Kubernetes cluster are workers, too
    ├── placement       choice of a worker, and assumptions of the prefix tree
    ├── admission       how much a worker is given before requests wait here
    ├── upstream        connections to workers
    ├── reliability     redispatch and circuit breakers
    ├── queue           requests that wait for a worker with room
    ├── offload         which requests are prefilled in another site
    ├── roles           the slow loop over how workers are shared between prefill and decode
    ├── shared          the log that replicas share through Redis
    ├── tenancy         how requests of different tenants are kept apart
    ├── observability   logs and metrics
    ├── admin           addresses of the admin API, and rights to use it
    ├── picker          how proxies are told where their requests go
    └── models          names that clients may ask for, and which models serve them

A setting is declared once: in a frozen dataclass beside the code that reads it, of which a section is made,
or here if several parts read it. `router.catalogue` derives its flag, environment variable, line of the
reference and error sentences. Flags follow the existing routers where the meaning is the same, so that a user
can swap the binary and keep the command line. `router.sources` fills the tree; `router.app` hands its
sections to the parts. Defaults of the peers quoted below are those of smg and sglang-router of autumn 2026.
"""

import dataclasses
import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.dataclasses import dataclass

from policies import (
    HANDOVER_LABEL,
    POLICIES,
    AdmissionRules,
    BreakerRules,
    CachePool,
    KvBytes,
    LengthBuckets,
    LinkRules,
    PolicyRules,
    RedispatchRules,
    RoomRules,
    ServiceLevel,
    VllmConnector,
    setting,
)
from policies.disaggregation import OffloadRules, RoleRules
from radix import AttentionProfile
from router.discovery import DiscoveryRules
from router.fleet import HealthRules
from router.forwarded_headers import FORWARDED_HEADERS, PATTERNS_MAX, header_pattern
from router.logs import LogRules
from router.model_rules import ModelRules
from router.named_workers import SITE, NamedWorker, WorkerLines, named_worker
from router.pass_through import passed_path
from router.picker_rules import PickerRules
from router.proxy import ClientLimits, ClientQuota, UpstreamRules, may_pass
from router.request_trace import RequestTraceRules
from router.session_rules import SessionRules
from router.shared import SharingRules
from router.tenants import TenancyRules
from router.tracing import SpanRules
from router.values import (
    HeaderName,
    HttpUrl,
    Networks,
    Secret,
    TokenCount,
    distinct,
    is_loopback,
    token_count,
)

_MIB = 1024 * 1024

PassedPath = Annotated[str, AfterValidator(passed_path)]
ForwardedHeader = Annotated[str, AfterValidator(header_pattern)]

CLASS_NAME = re.compile(r"[a-z0-9_-]{1,32}")


def _ascending(bounds: tuple[str, ...]) -> tuple[str, ...]:
    """Check that they are bounds of length buckets."""
    LengthBuckets(tuple(token_count(bound) for bound in bounds))
    return bounds


JUDGED = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=True)
"""Values are checked, and keys that are not known refused."""


@dataclasses.dataclass(frozen=True)
class ListenSettings:
    """The clients' socket, and bounds on the time and number of requests."""

    host: str = setting(
        "0.0.0.0",  # noqa: S104 - a gateway in a container is reached from outside it; see the description
        "Address to listen on. The default is every interface, as the peers have it, since a gateway "
        "usually runs in a container; 127.0.0.1 keeps it on this machine.",
        allowed="an address or a host name",
        pattern=r"^\S+$",
        common=True,
    )
    port: int = setting(30000, "Port to listen on. The default is the peers'.", ge=1, le=65535, common=True)
    workers: int = setting(
        1,
        "Gateway processes on this host that share the port. Each is a replica of its own, so more of "
        "them cost memory but no affinity.",
        ge=1,
        le=256,
        common=True,
    )
    api_key: Secret = setting(
        None,
        "Key that clients must send as a bearer token on the data API. Off while empty. Prefer the "
        "environment: a command line is visible to every user of the host.",
        common=True,
    )
    api_key_file: str = setting(
        "",
        "File with that key, in place of server.api_key. Read again within two seconds of a change.",
        flag="api-key-file",
    )
    request_timeout_s: float = setting(
        1800.0,
        "Longest time one request may take from its last byte to the last byte of its answer, in seconds. "
        "The default is the peers'; a hang is found much earlier by the upstream timeouts.",
        gt=0,
        live=True,
        common=True,
    )
    max_concurrent_requests: int = setting(
        -1,
        "Requests that one process has at workers at a time. More wait as queue.size allows; without a queue "
        "they are rejected with 429 and Retry-After. -1 or 0 turns the limit off, which is the default "
        "because limits for each worker are better (see admission). With any value, a process takes on no "
        "more requests than half the files that it may have open (ulimit -Hn).",
        ge=-1,
        live=True,
    )


@dataclass(frozen=True, config=JUDGED)
class ServerSettings(ClientQuota, ClientLimits, ListenSettings):
    """The clients' socket, and its limits."""

    keepalive_s: float = setting(
        75.0,
        "Idle time after which a client's connection is closed, in seconds. Keep it above the keep-alive "
        "time of a load balancer in front (60 s for most), else that one sends into a closing connection.",
        flag="keepalive-secs",
        gt=0,
    )
    shutdown_delay_s: float = setting(
        5.0,
        "Time for which the gateway goes on serving after SIGTERM, in seconds, while /readiness answers 503 "
        "and every answer tells its client to close the connection, so that a load balancer stops sending "
        "before connections are refused; idle connections are kept as long. Keep it above the time in which "
        "the balancer notices, and above the longest idle time of connections that clients use again. In "
        "Kubernetes it takes the place of a preStop sleep. The default is enough for Kubernetes to take the "
        "pod out of its endpoints, and for httpx, which uses no connection that was idle for 5 s. 0 turns it "
        "off; SIGINT (Ctrl-C) skips it.",
        ge=0,
        live=True,
    )
    shutdown_grace_s: float = setting(
        180.0,
        "Longest time requests in flight may take to finish after shutdown_delay_s, in seconds; then they "
        "are cut. Keep terminationGracePeriodSeconds of the pod above the sum of both and of any preStop "
        "hook, by 5 s. The default is the peers'.",
        flag="shutdown-grace-period-secs",
        ge=0,
        live=True,
    )
    request_id_headers: Annotated[tuple[HeaderName, ...], AfterValidator(distinct)] = setting(
        ("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),
        "Request headers that may hold the request's id; the first one present is used, else an id is "
        "made. The answer carries it as x-request-id. The default is the peers'.",
    )
    ssl_certfile: str = setting(
        "",
        "PEM file with the certificate chain to serve HTTPS. Off while empty. TLS files are read again when "
        "they change, for connections that begin after that.",
        common=True,
    )
    ssl_keyfile: str = setting(
        "", "PEM file with the certificate's private key. Needed with ssl_certfile.", common=True
    )
    ssl_ca_certs: str = setting(
        "",
        "PEM file with the authorities whose certificates clients must show (mutual TLS). Off while empty. "
        "Probes over HTTP show none: then send them to another listener.",
    )

    @model_validator(mode="after")
    def _the_key_is_said_once(self) -> Self:
        if self.api_key and self.api_key_file:
            raise ValueError("give api_key or api_key_file, not both")
        return self

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        _check_tls(self)
        return self


def _check_tls(listener: "ServerSettings | AdminSettings") -> None:
    if bool(listener.ssl_certfile) != bool(listener.ssl_keyfile):
        raise ValueError("ssl_certfile and ssl_keyfile must be given together")
    if listener.ssl_ca_certs and not listener.ssl_certfile:
        raise ValueError("ssl_ca_certs needs ssl_certfile and ssl_keyfile")


@dataclass(frozen=True, config=JUDGED)
class LinkSettings(LinkRules):
    """A link from one site to another: the value type of fleet.links."""


LINK_NAME = re.compile(rf"({SITE.pattern})>({SITE.pattern})")
"""``FROM>TO``: KV flows from the first site to the second."""


@dataclasses.dataclass(frozen=True)
class NamedSettings:
    """The workers, their sites and allowed addresses."""

    worker_urls: Annotated[tuple[HttpUrl, ...], AfterValidator(distinct)] = setting(
        (),
        "Base URLs of the workers. Empty is allowed: workers can be added at run time with POST /workers.",
        common=True,
    )
    prefill: WorkerLines = setting(
        (),
        "Prefill workers: the URL of each, then the port of its bootstrap server (SGLang's, and that of "
        "vLLM's Mooncake connector), then labels such as site=dc2, handover=mooncake, convertible=true or "
        "dp_size=8. The port left out, or none, is the one that the engine names, or 8998. They need decode "
        "workers of the same protocol.",
        allowed="URL [BOOTSTRAP_PORT|none] [LABEL=VALUE ...], once for each worker",
        common=True,
    )
    decode: WorkerLines = setting(
        (),
        "Decode workers: the URL of each, then labels as in fleet.prefill.",
        allowed="URL [LABEL=VALUE ...], once for each worker",
        common=True,
    )
    encode: WorkerLines = setting(
        (),
        "Encode workers, of SGLang started with --encoder-only: the URL of each, then labels. Language "
        "workers started with --language-only and this gateway as their --encoder-urls are served by them, "
        "each medium by the one that has seen it. Encoders may also register themselves, with "
        "--encoder-register-urls.",
        allowed="URL [LABEL=VALUE ...], once for each worker",
    )
    pd_disaggregation: bool = setting(
        False,  # noqa: FBT003 - a default
        "Require prefill and decode workers at the start, as the peers' flag does. They hand over by "
        "SGLang's bootstrap unless their label handover or their engine says otherwise; engines that ask for "
        "a key say nothing. Without it fleet.prefill and fleet.decode mean the same, and may be empty: such "
        "workers can also be added at run time.",
    )
    vllm_pd_disaggregation: bool = setting(
        False,  # noqa: FBT003 - a default
        "The same as fleet.pd_disaggregation for vLLM engines: prefill and decode workers hand over as "
        "fleet.kv_connector says, unless their label handover says otherwise. Without it the hand-over "
        "follows the engine that the gateway finds: SGLang's bootstrap, or NIXL for vLLM.",
    )
    kv_connector: VllmConnector = setting(
        "nixl",
        "Hand-over of vLLM engines with fleet.vllm_pd_disaggregation. The default is the peers'; their third "
        "choice, moriio, is not spoken here.",
    )
    site: str = setting(
        "",
        "Site of this gateway, and of all workers without a label site. It matters with fleet.links only. "
        "Must be equal in all replicas of a namespace.",
        allowed="up to 63 letters, digits, '.', '_' or '-'",
        pattern=rf"^({SITE.pattern})?$",
    )
    links: dict[str, LinkSettings] = setting(
        {},
        "Ways between sites that KV may take from prefill to decode, as 'FROM>TO': {gbps: capacity, rtt_ms: "
        "round trip time, cap_ratio: 0.9, loss_ratio_max: 0.01}. cap_ratio is the share of the capacity that "
        "KV takes at most in any second; above loss_ratio_max of failed transfers a link counts as scarce. "
        "Two directions are two links. Sites without a link between them never work on one request together. "
        "Must be equal in all replicas of a namespace.",
        allowed="a YAML mapping such as {'dc2>dc1': {gbps: 100, rtt_ms: 20}}",
    )
    worker_api_key: Secret = setting(
        None,
        "Key sent to workers as a bearer token in place of the client's, and with health checks. Only "
        "workers that the settings name, that discovery finds, or that are in fleet.worker_networks or "
        "fleet.worker_hosts get it. Empty: the client's key is passed on, unless it is the gateway's own key "
        "(server.api_key).",
        common=True,
    )
    worker_api_key_file: str = setting(
        "",
        "File with that key, in place of fleet.worker_api_key. Read again within two seconds of a change.",
    )
    allow_client_kv_transfer: bool = setting(
        False,  # noqa: FBT003 - a default
        "Let clients say how engines hand over KV (kv_transfer_params, bootstrap_room, data_parallel_rank "
        "and others, see docs/security.md). Only for clients that are trusted like this gateway: they can "
        "fetch other tenants' cached prompts. Otherwise such a request gets 400.",
    )
    worker_networks: Networks = setting(
        (),
        "Networks of workers that are not named in the settings but added later: by the admin API, by "
        "discovery, or by encoders that register themselves. The gateway checks the address of each "
        "connection. Empty: everywhere but link-local, multicast and the metadata services of clouds.",
        allowed="networks such as 10.0.0.0/8 or fd00::/8",
    )
    worker_hosts: tuple[str, ...] = setting(
        (),
        "Names that such workers may have: whole, or with a dot in front the end of a name. Addresses in "
        "place of names are then allowed only in fleet.worker_networks. Empty: any name.",
        allowed="names such as engine-0.example or .engines.svc",
    )
    disable_loopback_workers: bool = setting(
        False,  # noqa: FBT003 - a default
        "Refuse such workers on this machine. The default allows them, as engines often share a host with "
        "their gateway.",
    )
    worker_capacity_tokens: int = setting(
        1_000_000,
        "KV cache capacity assumed for a worker that does not report its own, in tokens; 0 means "
        "unlimited. Too high a value predicts hits that the engine evicted, which its reported cached "
        "tokens then correct; too low a value forgets prefixes that are still there.",
        ge=0,
    )


@dataclass(frozen=True, config=JUDGED)
class FleetSettings(HealthRules, NamedSettings):
    """The workers, their sites, and their health checks."""

    kv_events: Literal["off", "auto"] = setting(
        "off",
        "Follow the KV events of engines, so that predictions match the real caches (docs/kv-events.md). "
        "auto follows workers with a label kv_events, and others whose engine names its publishers, if their "
        "model has a tokenizer in placement.models: events name token ids, which text never matches. One "
        "replica follows each worker. Needs the extra cacheway[kv-events]. Must be equal in all replicas of "
        "a namespace.",
        common=True,
    )

    @property
    def assumed_handover(self) -> str:
        """SGLang's bootstrap with ``pd_disaggregation``, as the peers' flag means it."""
        return "sglang" if self.pd_disaggregation else ""

    @property
    def pair_labels(self) -> dict[str, str]:
        """Labels of prefill and decode workers that do not set them."""
        return {HANDOVER_LABEL: self.kv_connector} if self.vllm_pd_disaggregation else {}

    @property
    def workers(self) -> tuple[NamedWorker, ...]:
        """All workers that are named here, with their roles."""
        legs = (("prefill", self.prefill), ("decode", self.decode))
        named = [named_worker(line, role) for role, lines in legs for line in lines]
        return (
            *map(named_worker, self.worker_urls),
            *(dataclasses.replace(worker, labels={**self.pair_labels, **worker.labels}) for worker in named),
            *(named_worker(line, "encode") for line in self.encode),
        )

    @model_validator(mode="after")
    def _the_key_is_said_once(self) -> Self:
        if self.worker_api_key and self.worker_api_key_file:
            raise ValueError("give worker_api_key or worker_api_key_file, not both")
        return self

    @model_validator(mode="after")
    def _each_worker_has_one_role(self) -> Self:
        roles: dict[str, str] = {}
        for worker in self.workers:
            if worker.url in roles:
                both = " and ".join(dict.fromkeys((roles[worker.url], worker.role)))
                raise ValueError(f"{worker.url} is named twice, as {both}; name it once")
            roles[worker.url] = worker.role
        return self

    @model_validator(mode="after")
    def _one_kind_of_pairs_is_said(self) -> Self:
        if self.pd_disaggregation and self.vllm_pd_disaggregation:
            raise ValueError(
                "give pd_disaggregation or vllm_pd_disaggregation; for both engines in one gateway, neither"
            )
        return self

    @model_validator(mode="after")
    def _links_join_known_sites(self) -> Self:
        ends: set[str] = set()
        for name in self.links:
            found = LINK_NAME.fullmatch(name)
            if found is None or found[1] == found[2]:
                raise ValueError(
                    f"links: {name[:140]!r} is not a link; write FROM>TO with the names of two sites"
                )
            ends.update(found.groups())
        if ends and self.site not in ends:
            raise ValueError(f"site must name this gateway's site; give one of {', '.join(sorted(ends))}")
        return self


@dataclass(frozen=True, config=JUDGED)
class DiscoverySettings(DiscoveryRules):
    """Pods of a Kubernetes cluster that are workers, beside the named ones."""


@dataclass(frozen=True, config=JUDGED)
class ModelSettings(KvBytes):
    """Reuse that a model's attention allows, and size of its KV: one of placement.models."""

    attention: Literal["full", "sliding_window", "linear"] = setting(
        "full", "Kind of attention that limits reuse most."
    )
    retained_interval_tokens: int = setting(
        0, "Positions at which the engine keeps window or state, in tokens; 0 for none.", ge=0
    )
    engine_rule: Literal["auto", "vllm", "sglang"] = setting(
        "auto",
        "Engine whose rule says which windows and states are kept: auto takes each worker's own, by its "
        "label engine_rule or its description.",
    )
    tokenizer: str = setting(
        "",
        "Where token ids of prompts come from: empty for nowhere, a folder with tokenizer.json and the chat "
        "template, or engine.",
    )

    @property
    def profile(self) -> AttentionProfile:
        """The part of it that limits prefix matches."""
        dialect = None if self.engine_rule == "auto" else self.engine_rule
        return AttentionProfile(self.attention, self.window_tokens, self.retained_interval_tokens, dialect)

    @model_validator(mode="after")
    def _window_belongs_to_sliding_window(self) -> Self:
        if (self.attention == "sliding_window") != (self.window_tokens > 0):
            raise ValueError("window_tokens > 0 belongs to attention: sliding_window, and only to it")
        if self.window_bytes_per_token and not self.window_tokens:
            raise ValueError("window_bytes_per_token needs window_tokens")
        return self


@dataclass(frozen=True, config=JUDGED)
class CachePoolSettings(CachePool):
    """A KV cache that several workers share (L3): the value type of placement.cache_pools."""


@dataclass(frozen=True, config=JUDGED)
class PlacementSettings(SessionRules, PolicyRules):
    """Choice of a worker for a request, and assumptions of the prefix tree."""

    block_tokens: int = setting(
        256,
        "Size of a KV block, the unit of prefix matching, in tokens; for text, four bytes each. Smaller "
        "blocks match more exactly and cost memory and time. Must be equal in all replicas of a namespace.",
        ge=16,
        le=4096,
    )
    bytes_per_token: float = setting(
        4.0,
        "Prompt bytes per token assumed for a model until the workers' usage has taught better. The "
        "default is the common figure for English text and code.",
        ge=0.5,
        le=64,
        live=True,
    )
    expected_output_tokens: int = setting(
        256,
        "Output length assumed for a request that states no limit, in tokens.",
        ge=0,
        live=True,
    )
    prefill_tokens_per_s: float | None = setting(
        None,
        "Prefill speed assumed for a worker at an empty context until observation has taught better, in "
        "tokens per second. Empty takes the built-in profile of its worker class.",
        gt=0,
        live=True,
    )
    congestion_max: float = setting(
        50.0,
        "Upper bound of the congestion factor kappa = arrivals per second / (1 - utilisation) of a "
        "worker, per second. 0 turns expected_cost into min_ttft. The default only bites next to "
        "saturation.",
        ge=0,
        live=True,
    )
    copy_horizon_s: float = setting(
        0.0,
        "Time for which a further copy of a hot prefix (a system prompt that many requests share) is "
        "expected to be used, in seconds. A worker without the prefix is then preferred as soon as the wait "
        "that the copy saves others in that time is worth its prefill, before the queue itself is longer "
        "than that. 300 suits prefixes that stay hot for minutes. 0, the default, copies a prefix only where "
        "that is sooner for the request at hand. Only expected_cost follows it.",
        ge=0,
        le=86_400,
        live=True,
    )
    tree_blocks_max: int = setting(
        8_000_000,
        "Most distinct KV blocks in the prefix tree; the least recently used go first. The default covers "
        "two thousand million tokens at 256 per block.",
        ge=1000,
    )
    own_policies: tuple[str, ...] = setting(
        (),
        "Policies of your own to load beside those that placement.policy, prefill_policy and shadow_policy "
        "name: PACKAGE.MODULE:NAME, or entry points of the group cacheway.policies. Only policies that were "
        "loaded at the start can be chosen while the gateway serves (docs/own-policy.md).",
    )
    own_policy_budget_us: int = setting(
        1000,
        "Longest time that a policy of your own may take for a decision, in microseconds. One that takes "
        "longer in more than 1 % of its decisions is switched off. The default is several times that of a "
        "built-in policy for a thousand workers.",
        ge=10,
        le=1_000_000,
    )
    own_policy_fallback: str = setting(
        "expected_cost",
        "Policy that decides in place of one of your own that was switched off, with its default options.",
        choices=tuple(POLICIES),
    )
    models: dict[str, ModelSettings] = setting(
        {},
        "Attention profile per model name, '*' for all others: {attention: full | sliding_window | linear, "
        "window_tokens: W, retained_interval_tokens: N, engine_rule: auto | vllm | sglang}. Models not "
        "listed count as full attention. With fleet.links also the size of its KV, in bytes: "
        "kv_bytes_per_token is full-attention layers x KV heads x (key + value dimension) x bytes of an "
        "element, for latent attention layers x (latent + rotary dimension) x bytes of an element; "
        "window_bytes_per_token the same over the layers with a window; state_bytes the state that all "
        "linear layers keep of a sequence. Without them a transfer has no price, and no prompt is prefilled "
        "in another site. tokenizer: FOLDER or engine turns prompts into the token ids that engines see "
        "(docs/token-identity.md): FOLDER has tokenizer.json, tokenizer_config.json and chat_template.jinja "
        "as the model has them, engine asks a worker's /tokenize. Tokenizers must be equal in all replicas "
        "of a namespace.",
        common=True,
    )
    tokenizing_s_max: float = setting(
        0.1,
        "Longest time that a request waits for the token ids of its prompt, in seconds, plus a microsecond "
        "for each byte of its body; then it goes on with its text identity, and its next turn finds the ids. "
        "The default is twice the time that a core takes, and a tenth of a second for the queue.",
        gt=0,
        le=60,
    )
    tokenizing_threads: int = setting(
        2,
        "Prompts that are tokenized at a time, each by a thread, for models with a tokenizer. More than "
        "there are cores to spare would slow down everything else.",
        ge=1,
        le=64,
    )
    tokenizing_cache_bytes_max: int = setting(
        256 * _MIB,
        "Most bytes of remembered token ids, at four bytes each. With the default, only the new part of "
        "conversations with some 60 million tokens is tokenized.",
        ge=_MIB,
    )
    cache_pools: dict[str, CachePoolSettings] = setting(
        {},
        "Caches that workers share behind their own (HiCache L3, Mooncake Store), by name: {capacity_tokens: "
        "N, fetch_base_s: S, fetch_tokens_per_s: R, fetch_tokens_min: 256, prefetch_policy: timeout}. "
        "prefetch_policy is that of the engines (timeout, best_effort or wait_complete): only what comes "
        "before the engine stops a fetch counts, with timeout after 2 s and 0.1 s for each 1,024 tokens, but "
        "not above 30 s, with best_effort when the prefill could begin. A worker shares the pool that its "
        "label cache_pool names, '*' without one; the savings and costs of a fetch are then part of its "
        "price. Must be equal in all replicas of a namespace.",
    )
    length_buckets: Annotated[tuple[TokenCount, ...], AfterValidator(_ascending)] = setting(
        ("64K", "256K", "1M"),
        "Upper bounds of the length buckets in ascending order, in tokens of prompt plus expected output; K "
        "is 1024. Any number of them. A worker belongs to the one that its label bucket names, by name "
        "(64K-256K) or number (0 is the shortest); without the label it takes any length, so nothing changes "
        "until a worker is labelled. Then requests longer than the last bound get 400, unless a worker takes "
        "any length. The default is the published one; cacheway plan --buckets finds bounds for your "
        "traffic. Must be equal in all replicas of a namespace.",
    )


@dataclass(frozen=True, config=JUDGED)
class AdmissionSettings(ServiceLevel, AdmissionRules):
    """Load up to which a worker gets requests before they wait here."""


@dataclass(frozen=True, config=JUDGED)
class UpstreamSettings(UpstreamRules):
    """Connections to workers."""

    answer_headers: Annotated[tuple[HeaderName, ...], AfterValidator(distinct)] = setting(
        (),
        "More headers of workers' answers that clients see, beside those in docs/security.md. Headers of a "
        "connection, x-request-id, x-cacheway-* and x-ratelimit-* never pass.",
    )
    forward_headers: Annotated[
        tuple[ForwardedHeader, ...], Field(max_length=PATTERNS_MAX), AfterValidator(distinct)
    ] = setting(
        FORWARDED_HEADERS,
        "Headers of clients that pass to workers: names, or the beginning of names followed by *. "
        "docs/endpoints.md lists those that never pass. Keys pass only if neither the gateway nor the fleet "
        "has one.",
        allowed="names of headers such as x-team or anthropic-*",
        live=True,
    )
    pass_through: Annotated[tuple[PassedPath, ...], AfterValidator(distinct)] = setting(
        (),
        "More paths of the engines that clients reach by POST and GET, beside those in docs/endpoints.md: a "
        "path (/v1/videos), or all below one (/omni/*). The model is read from JSON or a form. Paths of the "
        "gateway and those that administer an engine are refused.",
        live=True,
    )
    continue_streams: Literal["off", "request", "all"] = setting(
        "request",
        "Let another worker continue a stream of plain text whose worker died: off, request (if the client's "
        "header x-cacheway-continue is true), or all (unless that header is false). docs/failures.md lists "
        "the requests and the abilities of engines that it needs.",
        live=True,
    )
    continue_models: Annotated[tuple[str, ...], AfterValidator(distinct)] = setting(
        (),
        "Models whose streams may be continued; empty: all. Leave out reasoning models whose engine has no "
        "reasoning parser and whose chat template opens the reasoning itself.",
        live=True,
    )
    continuations_max: int = setting(
        1,
        "Most continuations of one stream. Each may cost another worker if the request itself kills workers.",
        ge=1,
        le=10,
        live=True,
    )
    verify: bool = setting(
        True,  # noqa: FBT003 - a default, not a call's flag
        "Verify the certificates of https workers.",
        flag="upstream-verify",
    )
    ca_file: str = setting(
        "",
        "PEM file with the authorities to verify workers with. Empty: the system's.",
        flag="upstream-ca-file",
    )
    client_cert: str = setting(
        "", "PEM file with the certificate shown to workers. Off while empty.", flag="upstream-client-cert"
    )
    client_key: str = setting(
        "",
        "PEM file with that certificate's private key, if not in the same file.",
        flag="upstream-client-key",
    )

    @field_validator("answer_headers")
    @classmethod
    def _headers_that_may_pass(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not may_pass(name.encode()):
                raise ValueError(f"{name} of a worker never reaches a client")
        return names

    @model_validator(mode="after")
    def _a_key_needs_its_certificate(self) -> Self:
        if self.client_key and not self.client_cert:
            raise ValueError("client_key needs client_cert")
        return self


@dataclass(frozen=True, config=JUDGED)
class ReliabilitySettings(BreakerRules, RedispatchRules):
    """Redispatch and circuit breakers."""

    stall_factor: float = setting(
        4.0,
        "Factor over the predicted time that a prefill or decode worker may take for its part of a request "
        "that two of them share. A worker that takes longer, and has shown no progress with anything else "
        "meanwhile, has failed it, and the request is redispatched. Predictions are fitted to within a "
        "factor of two; before they are, nothing is given up. 0 turns it off.",
        ge=0,
        live=True,
    )
    stall_floor_s: float = setting(
        10.0,
        "Time added to what reliability.stall_factor allows, in seconds: engines pause for seconds now and "
        "then, to compile a kernel or a grammar.",
        flag="stall-floor-secs",
        gt=0,
        live=True,
    )


@dataclass(frozen=True, config=JUDGED)
class QueueSettings(RoomRules):
    """Requests that wait for a worker with room, in one order over all replicas."""

    uncached_weight: float = setting(
        4.0,
        "Weight k of the work: requests go by arrival plus k times their predicted prefill, in seconds. "
        "So no request is overtaken by one that arrived more than k times its own prefill later. 0 is first "
        "come, first served; a large value is the least work first.",
        flag="queue-uncached-weight",
        ge=0,
        le=1000,
        live=True,
    )
    classes: dict[str, float] = setting(
        {"high": 8.0, "normal": 4.0, "low": 1.0},
        "Classes of requests, the most urgent first, and their shares of the fleet while requests of several "
        "classes wait. A request names its class with the header x-priority, by name or as a number of "
        "classes above the default one, or with the fields priority or service_tier of its body. When the "
        "queue is full, a more urgent request takes the place of a less urgent one of its replica. Must be "
        "equal in all replicas of a namespace.",
        flag="queue-classes",
        allowed="NAME=SHARE with shares above 0, names of lower-case letters, digits, '_' and '-'",
        live=True,
    )
    default_class: str = setting(
        "normal",
        "Class of a request that names none.",
        flag="queue-default-class",
        allowed="one of queue.classes",
        live=True,
    )
    low_values_first: bool = setting(
        False,  # noqa: FBT003 - a default
        "Treat a lower number as the more urgent priority, as vLLM does. The default is SGLang's order.",
        flag="queue-low-values-first",
        live=True,
    )
    fairness_quantum_s: float = setting(
        1.0,
        "Lead over its share that a tenant or class may have before others that wait go first, in seconds of "
        "its share of the fleet. Shorter is fairer, longer keeps the order by uncached work, and locality.",
        flag="queue-fairness-quantum-secs",
        gt=0,
        live=True,
    )
    fairness_window_s: float = setting(
        60.0,
        "Time over which service is compared, in seconds: no flow saves up more than that.",
        flag="queue-fairness-window-secs",
        gt=0,
        le=3600,
    )

    @model_validator(mode="after")
    def _the_classes_make_sense(self) -> Self:
        for name, share in self.classes.items():
            if not CLASS_NAME.fullmatch(name):
                raise ValueError(
                    f"classes: {name[:100]!r} is no name of lower-case letters, digits, '_' and '-'"
                )
            if share <= 0:
                raise ValueError(f"classes: the share of {name!r} must be above 0")
        if self.default_class not in self.classes:
            raise ValueError(f"default_class must be one of {', '.join(self.classes) or 'the classes'}")
        return self


@dataclass(frozen=True, config=JUDGED)
class OffloadSettings(OffloadRules):
    """Requests that are prefilled in another site than they are decoded in; needs fleet.links."""


@dataclass(frozen=True, config=JUDGED)
class RoleSettings(RoleRules):
    """The slow loop that divides workers between prefill and decode."""


@dataclass(frozen=True, config=JUDGED)
class SharedSettings(SharingRules):
    """The log that replicas share through Redis."""


@dataclass(frozen=True, config=JUDGED)
class TenancySettings(TenancyRules):
    """Separation of the tenants' requests."""


@dataclass(frozen=True, config=JUDGED)
class ObservabilitySettings(RequestTraceRules, SpanRules, LogRules):
    """Logs and metrics."""

    prometheus_port: int | None = setting(
        None,
        "Port of a second listener that serves only /metrics; the data port then answers 404 for it, since "
        "clients need not know the names and loads of others. Empty: /metrics is on the data port, so that "
        "two gateways on one host need no second free port; the peers use 29000.",
        ge=1,
        le=65535,
        common=True,
    )
    prometheus_host: str = setting(
        "0.0.0.0",  # noqa: S104 - scraped from outside the container
        "Address of that listener. The default is every interface, since a scraper is on another machine or "
        "in another pod; the listener has no key, so let a NetworkPolicy or a firewall admit the scraper "
        "alone.",
        allowed="an address or a host name",
        pattern=r"^\S+$",
    )


@dataclass(frozen=True, config=JUDGED)
class AdminSettings:
    """Addresses of the admin API, and rights to use it."""

    host: str = setting(
        "127.0.0.1",
        "Address of the admin API. The default keeps it on this machine. Any other needs keys or tokens: "
        "admin.tokens_file, server.api_key or tenancy.keys_file.",
        flag="admin-host",
        allowed="an address or a host name",
        pattern=r"^\S+$",
    )
    port: int = setting(
        29100,
        "Port of the admin API. 0: it is served on the data port, beside what is proxied, as the peers have "
        "it. The default keeps it apart, so that clients of the data port do not reach it. Processes of "
        "--workers share it.",
        flag="admin-port",
        ge=0,
        le=65535,
        common=True,
    )
    tokens_file: str = setting(
        "",
        "YAML file of the names, roles and hashes of bearer tokens for the admin API, which `cacheway keys "
        "admin` makes; see docs/admin-api.md. Read again within two seconds of a change. Empty: the admin "
        "API asks for server.api_key, or for nothing if that is empty, too.",
        flag="admin-tokens-file",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Names by which the admin API may be called where it asks for no key, beside addresses and "
        "localhost: whole, or with a dot in front the end of a name. Any other name may be a web page's that "
        "leads an operator's browser here (DNS rebinding), and gets 403. With a key any name will do.",
        flag="admin-allowed-hosts",
        allowed="names such as gateway.example or .cacheway.svc",
    )
    ssl_certfile: str = setting(
        "",
        "PEM file with the certificate chain of the admin API's own port. Empty: plain HTTP.",
        flag="admin-ssl-certfile",
    )
    ssl_keyfile: str = setting(
        "",
        "PEM file with that certificate's private key. Needed with admin.ssl_certfile.",
        flag="admin-ssl-keyfile",
    )
    ssl_ca_certs: str = setting(
        "",
        "PEM file with authorities; a client of the admin API's own port must then show a certificate that "
        "one of them has signed. Needs admin.ssl_certfile. Empty: none is asked for.",
        flag="admin-ssl-ca-certs",
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        _check_tls(self)
        return self


@dataclass(frozen=True, config=JUDGED)
class PickerSettings(PickerRules):
    """Choice of workers for proxies, by the endpoint-picker protocol."""


@dataclass(frozen=True, config=JUDGED)
class ModelsSettings(ModelRules):
    """Names that clients may ask for, and the models that serve them."""


class Settings(BaseModel):
    """All settings of one gateway."""

    model_config = ConfigDict(frozen=True, **JUDGED)

    server: ServerSettings = ServerSettings()
    fleet: FleetSettings = FleetSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    placement: PlacementSettings = PlacementSettings()
    admission: AdmissionSettings = AdmissionSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    reliability: ReliabilitySettings = ReliabilitySettings()
    queue: QueueSettings = QueueSettings()
    offload: OffloadSettings = OffloadSettings()
    roles: RoleSettings = RoleSettings()
    shared: SharedSettings = SharedSettings()
    tenancy: TenancySettings = TenancySettings()
    observability: ObservabilitySettings = ObservabilitySettings()
    admin: AdminSettings = AdminSettings()
    picker: PickerSettings = PickerSettings()
    models: ModelsSettings = ModelsSettings()

    @model_validator(mode="after")
    def _prefill_and_decode_need_each_other(self) -> Self:
        found = self.discovery.selectors if self.discovery.service_discovery else {}
        for flag in ("pd_disaggregation", "vllm_pd_disaggregation"):
            for part in ("prefill", "decode"):
                known = getattr(self.fleet, part) or part in found or "" in found
                if getattr(self.fleet, flag) and not known:
                    raise ValueError(
                        f"fleet: {flag} needs {part} workers; name them with --{part} URL, or select their "
                        f"pods with --service-discovery --{part}-selector KEY=VALUE"
                    )
        return self

    @model_validator(mode="after")
    def _the_admin_api_is_not_open_to_a_network(self) -> Self:
        asks = (
            self.admin.tokens_file
            or self.server.api_key
            or self.server.api_key_file
            or self.tenancy.keys_file
        )
        if self.admin.port and not asks and not is_loopback(self.admin.host):
            raise ValueError(
                f"admin.host: the admin API would be open to all that reach {self.admin.host}; give "
                "admin.tokens_file or server.api_key, or leave it at 127.0.0.1"
            )
        if self.admin.port == self.server.port:
            raise ValueError(f"admin.port: {self.admin.port} is the data port; 0 serves both there")
        return self
