"""Everything an operator can set, as one frozen tree.

    Settings
    ├── server          the socket clients connect to, and its limits
    ├── fleet           the workers and how their health is checked
    ├── placement       how a worker is chosen, and what the prefix tree assumes
    ├── admission       how much a worker is given before requests wait here
    ├── upstream        connections to workers
    ├── reliability     redispatch and circuit breakers
    ├── queue           requests that wait for a worker with room
    ├── offload         which requests are prefilled in another site
    ├── roles           the slow loop over how workers are shared between prefill and decode
    ├── shared          the log that replicas share through Redis
    ├── tenancy         how requests of different tenants are kept apart
    └── observability   logs and metrics

A setting is declared once, here; its flag, environment variable, line of the reference and
error sentences are derived from the declaration (`router.catalogue`). Names follow the house
style; flags follow the existing routers where the meaning is the same, so that a user can swap the
binary and keep the command line. `router.sources` fills the tree from flags, environment and
file. Only `router.app` reads it; everything below gets plain values.

Defaults of the peers quoted below are those of smg and sglang-router of autumn 2026.
"""

import re
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from policies import DECODE_COST, DECODE_POLICIES, POLICIES, LengthBuckets, make_policy
from router.named_workers import SITE, NamedWorker, WorkerLines, named_worker
from router.values import HeaderName, HttpUrl, LogLevel, RedisUrl, Secret, TokenCount, distinct, token_count

_MIB = 1024 * 1024

CLASS_NAME = re.compile(r"[a-z0-9_-]{1,32}")


def setting(
    default: Any,
    description: str,
    *,
    flag: str = "",
    choices: tuple[str, ...] = (),
    allowed: str = "",
    **limits: Any,
) -> Any:
    """Declare a setting.

    Args:
        default: Value when nobody sets it.
        description: What it does, its unit, how to turn it off, and why this default.
        flag: Command-line name without dashes in front, where it is not the field's own name
            with dashes and ``-secs`` for ``_s``.
        choices: Values it takes, where its type does not say so.
        allowed: What it may be, in words, where type and limits do not say so.
        limits: ``ge``, ``gt``, ``le``, ``lt``, ``pattern`` as in `pydantic.Field`.
    """
    extra: dict[str, Any] = {"flag": flag, "choices": list(choices), "allowed": allowed}
    return Field(default=default, description=description, json_schema_extra=extra, **limits)


def _known_policy(name: str) -> str:
    """Check that the registry has a policy."""
    if name not in POLICIES:
        raise ValueError(f"there is no policy {name!r}")
    return name


def _known_decode_policy(name: str) -> str:
    """Check that there is such a policy of decode workers."""
    if name not in DECODE_POLICIES:
        raise ValueError(f"there is no decode policy {name!r}")
    return name


def _ascending(bounds: tuple[str, ...]) -> tuple[str, ...]:
    """Check that they are bounds of length buckets."""
    LengthBuckets(tuple(token_count(bound) for bound in bounds))
    return bounds


class Section(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )


class ServerSettings(Section):
    """The socket clients connect to, and its limits."""

    host: str = setting(
        "0.0.0.0",  # noqa: S104 - a gateway in a container is reached from outside it; see the description
        "Address to listen on. The default is every interface, as the peers have it, since a gateway "
        "usually runs in a container; 127.0.0.1 keeps it on this machine.",
        allowed="an address or a host name",
        pattern=r"^\S+$",
    )
    port: int = setting(30000, "Port to listen on. The default is the peers'.", ge=1, le=65535)
    workers: int = setting(
        1,
        "Gateway processes on this host that share the port. Each is a replica of its own, so more of "
        "them cost memory but no affinity.",
        ge=1,
        le=256,
    )
    api_key: Secret = setting(
        None,
        "Key that clients must send as a bearer token on the data API. Off while empty. Prefer the "
        "environment: a command line is visible to every user of the host.",
    )
    request_timeout_s: float = setting(
        1800.0,
        "Longest time one request may take from its last byte to the last byte of its answer, in seconds. "
        "The default is the peers'; a hang is found much earlier by the upstream timeouts.",
        gt=0,
    )
    max_concurrent_requests: int = setting(
        -1,
        "Requests that one process has at workers at a time. More wait as queue.size allows; without a queue "
        "they are rejected with 429 and Retry-After. -1 or 0 turns the limit off, which is the default "
        "because what each worker can take is the better limit (see admission). Whatever it is, a process "
        "takes on no more requests than half the files that it may have open (ulimit -Hn).",
        ge=-1,
    )
    body_bytes_max: int = setting(
        512 * _MIB,
        "Largest request body, in bytes; larger ones get 413. The default is the peers', large enough for "
        "batches of embeddings and images as data. A body is held in memory until it is sent.",
        flag="max-payload-size",
        ge=1024,
    )
    header_count_max: int = setting(
        100,
        "Most header lines of a request; more get 431. The default is what most HTTP servers allow.",
        ge=8,
    )
    header_bytes_max: int = setting(
        64 * 1024,
        "Largest head of a request, in bytes; larger ones get 431. The default has room for large bearer "
        "tokens.",
        ge=1024,
        le=16 * _MIB,
    )
    read_timeout_s: float = setting(
        60.0,
        "Longest time a client may take to send the head or the body of a request, in seconds; then it "
        "gets 408. It frees us from clients that send a byte at a time.",
        gt=0,
    )
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
        "before connections are refused; idle connections are kept as long. Keep it above what the balancer "
        "takes to notice, and above the idle time after which clients use a connection no more. In "
        "Kubernetes it takes the place of a preStop sleep. The default is enough for Kubernetes to take the "
        "pod out of its endpoints, and for httpx, which uses no connection that was idle for 5 s. 0 turns it "
        "off; SIGINT (Ctrl-C) skips it.",
        ge=0,
    )
    shutdown_grace_s: float = setting(
        180.0,
        "Longest time requests in flight may take to finish after shutdown_delay_s, in seconds; then they "
        "are cut. Keep terminationGracePeriodSeconds of the pod above the sum of both and of any preStop "
        "hook, by 5 s. The default is the peers'.",
        flag="shutdown-grace-period-secs",
        ge=0,
    )
    request_id_headers: Annotated[tuple[HeaderName, ...], AfterValidator(distinct)] = setting(
        ("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),
        "Request headers that may hold the request's id; the first one present is used, else an id is "
        "made. The answer carries it as x-request-id. The default is the peers'.",
    )
    ssl_certfile: str = setting("", "PEM file with the certificate chain to serve HTTPS. Off while empty.")
    ssl_keyfile: str = setting("", "PEM file with the certificate's private key. Needed with ssl_certfile.")

    @model_validator(mode="after")
    def _certificate_and_key_come_together(self) -> Self:
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise ValueError("ssl_certfile and ssl_keyfile must be given together")
        return self


class LinkSettings(Section):
    """A way between two sites, in one direction: the value type of fleet.links."""

    gbps: float = Field(gt=0, description="Capacity, in Gbit/s.")
    rtt_ms: float = Field(default=0.0, ge=0, description="Round trip time, in milliseconds.")
    cap_ratio: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Share of the capacity that KV may take, in every second; the rest is for what else "
        "crosses, and for TCP, which never fills a link to its last bit.",
    )
    loss_ratio_max: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="Transfers that failed, as a share of the latest, above which it counts as scarce.",
    )


LINK_NAME = re.compile(rf"({SITE.pattern})>({SITE.pattern})")
"""``FROM>TO``: KV flows from the first site to the second."""


class FleetSettings(Section):
    """The workers, where they stand, and how their health is checked."""

    worker_urls: Annotated[tuple[HttpUrl, ...], AfterValidator(distinct)] = setting(
        (),
        "Base URLs of the workers. Empty is allowed: workers can be added at run time with POST /workers.",
    )
    prefill: WorkerLines = setting(
        (),
        "Prefill workers: the URL of each, then the port of its bootstrap server (SGLang's, and that of "
        "vLLM's Mooncake connector), then labels such as site=dc2, handover=mooncake, convertible=true or "
        "dp_size=8. The port left out, or none, is the one that the engine names, or 8998. They need decode "
        "workers of the same protocol.",
        allowed="URL [BOOTSTRAP_PORT|none] [LABEL=VALUE ...], once for each worker",
    )
    decode: WorkerLines = setting(
        (),
        "Decode workers: the URL of each, then labels as in fleet.prefill.",
        allowed="URL [LABEL=VALUE ...], once for each worker",
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
        "Whether prefill and decode workers must be named for the start, as the peers' flag means it. "
        "Without it fleet.prefill and fleet.decode mean the same, and may be empty: such workers can also be "
        "added at run time.",
    )
    vllm_pd_disaggregation: bool = setting(
        False,  # noqa: FBT003 - a default
        "The same as fleet.pd_disaggregation for vLLM engines: prefill and decode workers hand over as "
        "fleet.kv_connector says, unless their label handover says otherwise. Without it, as the engine that "
        "each turns out to be does by default: SGLang's bootstrap, or NIXL for vLLM.",
    )
    kv_connector: Literal["nixl", "mooncake"] = setting(
        "nixl",
        "How vLLM engines hand over with fleet.vllm_pd_disaggregation. The default is the peers'; their "
        "third choice, moriio, is not spoken here.",
    )
    site: str = setting(
        "",
        "Site where this gateway stands, and all workers without a label site. It matters with fleet.links "
        "only. Must be equal in all replicas of a namespace.",
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
        "Key sent to workers as a bearer token in place of the client's, and with health checks. Empty: "
        "what the client sent is passed on, unless it is the gateway's own key (server.api_key).",
    )
    worker_capacity_tokens: int = setting(
        1_000_000,
        "KV cache capacity assumed for a worker that does not report its own, in tokens; 0 means "
        "unlimited. Too high a value predicts hits that the engine evicted, which its reported cached "
        "tokens then correct; too low a value forgets prefixes that are still there.",
        ge=0,
    )
    health_check_interval_s: float = setting(
        5.0,
        "Time between two health checks of a worker, in seconds. Shorter than the peers' 60 s, so that a "
        "dead worker is known within 15 s even without traffic.",
        gt=0,
    )
    health_check_timeout_s: float = setting(
        5.0,
        "Longest time a health check may take, in seconds. The default is the peers'; a busy engine "
        "answers late.",
        gt=0,
    )
    health_check_endpoint: str = setting(
        "/health",
        "Path of the health check. SGLang, vLLM and the emulator serve the default.",
        allowed="a path that starts with /",
        pattern=r"^/\S*$",
    )
    health_failure_threshold: int = setting(
        3, "Failed health checks in a row after which a worker is unhealthy. The default is the peers'.", ge=1
    )
    health_success_threshold: int = setting(
        2,
        "Successful health checks in a row after which an unhealthy worker is healthy again. The default "
        "is the peers'. A worker seen for the first time needs one.",
        ge=1,
    )
    slow_start_s: float = setting(
        10.0,
        "Time over which a worker that returns (healthy again, no longer ejected, or restarted) grows from a "
        "tenth to its full share of the requests, in seconds; 0 gives it the full share at once. The default "
        "is long enough to see a worker that is not well after all, at a tenth of the price.",
        ge=0,
    )

    @property
    def workers(self) -> tuple[NamedWorker, ...]:
        """All workers that are named here, with their roles."""
        legs = (("prefill", self.prefill), ("decode", self.decode))
        default = {"handover": self.kv_connector} if self.vllm_pd_disaggregation else {}
        named = [named_worker(line, role) for role, lines in legs for line in lines]
        return (
            *map(named_worker, self.worker_urls),
            *(replace(worker, labels={**default, **worker.labels}) for worker in named),
            *(named_worker(line, "encode") for line in self.encode),
        )

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
    def _prefill_and_decode_need_each_other(self) -> Self:
        for flag in ("pd_disaggregation", "vllm_pd_disaggregation"):
            for part in ("prefill", "decode"):
                if getattr(self, flag) and not getattr(self, part):
                    raise ValueError(f"{flag} needs {part} workers; name them with --{part} URL")
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
            raise ValueError(
                f"site must say where this gateway stands; give one of {', '.join(sorted(ends))}"
            )
        return self


class AttentionSettings(Section):
    """What a model's attention lets an engine reuse, and what its KV weighs: one of placement.models."""

    attention: Literal["full", "sliding_window", "linear"] = Field(
        default="full", description="Kind of attention that limits reuse most."
    )
    window_tokens: int = Field(default=0, ge=0, description="Sliding window W, in tokens.")
    retained_interval_tokens: int = Field(
        default=0,
        ge=0,
        description="Positions at which the engine keeps window or state, in tokens; 0 for none.",
    )
    kv_bytes_per_token: float = Field(
        default=0.0, ge=0, description="KV of one token in all layers of full attention, in bytes."
    )
    window_bytes_per_token: float = Field(
        default=0.0, ge=0, description="KV of one token in all layers with a sliding window, in bytes."
    )
    state_bytes: float = Field(
        default=0.0, ge=0, description="State of one sequence in all linear layers, in bytes."
    )

    @model_validator(mode="after")
    def _window_belongs_to_sliding_window(self) -> Self:
        if (self.attention == "sliding_window") != (self.window_tokens > 0):
            raise ValueError("window_tokens > 0 belongs to attention: sliding_window, and only to it")
        if self.window_bytes_per_token and not self.window_tokens:
            raise ValueError("window_bytes_per_token needs window_tokens")
        return self


class CachePoolSettings(Section):
    """A KV cache that several workers share (L3): the value type of placement.cache_pools."""

    capacity_tokens: int = Field(default=0, ge=0, description="What it can hold, in tokens; 0 for no bound.")
    fetch_base_s: float = Field(
        default=0.005, ge=0, description="Time before a fetch brings anything, in seconds."
    )
    fetch_tokens_per_s: float = Field(
        default=50_000.0, gt=0, description="Tokens a second that come to one worker."
    )
    fetch_tokens_min: int = Field(default=256, ge=1, description="Engines do not fetch fewer tokens.")


class PlacementSettings(Section):
    """How a worker is chosen for a request, and what the prefix tree assumes."""

    policy: Annotated[str, AfterValidator(_known_policy)] = setting(
        "expected_cost",
        "Policy that chooses a worker. The default prices cache, load and the harm to later requests in "
        "seconds of time to first token; the others are the peers' rules, for comparison and migration.",
        choices=tuple(POLICIES),
    )
    prefill_policy: Annotated[str, AfterValidator(_known_policy)] | None = setting(
        None,
        "Policy that chooses among prefill workers, and between them and plain workers. Empty: "
        "placement.policy, as with the peers.",
        choices=tuple(POLICIES),
    )
    decode_policy: Annotated[str, AfterValidator(_known_decode_policy)] = setting(
        DECODE_COST,
        "Policy that chooses the decode worker, among those with room that the prefill worker can hand over "
        "to. The default prices the wait for KV memory, the transfer that prefill does not hide, and the "
        "output at that worker's batch and context, in seconds; the others are the peers'.",
        choices=DECODE_POLICIES,
    )
    policy_options: dict[str, float] = setting(
        {},
        "Numbers that the chosen policies take, as NAME=VALUE; each takes those that it has. Empty keeps "
        "their own defaults.",
    )
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
    )
    expected_output_tokens: int = setting(
        256, "Output length assumed for a request that states no limit, in tokens.", ge=0
    )
    prefill_tokens_per_s: float | None = setting(
        None,
        "Prefill speed assumed for a worker at an empty context until observation has taught better, in "
        "tokens per second. Empty takes the built-in profile of its worker class.",
        gt=0,
    )
    congestion_max: float = setting(
        50.0,
        "Upper bound of the congestion factor kappa = arrivals per second / (1 - utilisation) of a "
        "worker, per second. 0 turns expected_cost into min_ttft. The default only bites next to "
        "saturation.",
        ge=0,
    )
    tree_blocks_max: int = setting(
        8_000_000,
        "Most distinct KV blocks in the prefix tree; the least recently used go first. The default covers "
        "two thousand million tokens at 256 per block.",
        ge=1000,
    )
    models: dict[str, AttentionSettings] = setting(
        {},
        "Attention profile per model name, '*' for all others: {attention: full | sliding_window | "
        "linear, window_tokens: W, retained_interval_tokens: N}. Models not listed count as full "
        "attention. With fleet.links also what its KV weighs, in bytes: kv_bytes_per_token is full-attention "
        "layers x KV heads x (key + value dimension) x bytes of an element, for latent attention layers x "
        "(latent + rotary dimension) x bytes of an element; window_bytes_per_token the same over the layers "
        "with a window; state_bytes what all linear layers keep of a sequence. Without them a transfer has "
        "no price, and no prompt is prefilled in another site.",
    )
    cache_pools: dict[str, CachePoolSettings] = setting(
        {},
        "Caches that workers share behind their own (HiCache L3, Mooncake Store), by name: "
        "{capacity_tokens: N, fetch_base_s: S, fetch_tokens_per_s: R, fetch_tokens_min: 256}. A worker "
        "shares the pool that its label cache_pool names, '*' without one; what a fetch saves and costs is "
        "then part of its price. "
        "Must be equal in all replicas of a namespace.",
    )
    length_buckets: Annotated[tuple[TokenCount, ...], AfterValidator(_ascending)] = setting(
        ("64K", "256K", "1M"),
        "Upper bounds of the length buckets in ascending order, in tokens of prompt plus expected output; K "
        "is 1024. Any number of them. Longer requests get 400, unless a worker takes any length. The default "
        "is the published one. Must be equal in all replicas of a namespace.",
    )
    bucket_mode: Literal["off", "labels", "auto"] = setting(
        "labels",
        "How workers come to length buckets. labels: by their label bucket, which is the name (64K-256K) or "
        "the number (0 is the shortest) of one; without it they take any length, so nothing changes until "
        "one is labelled. auto (experimental): workers without the label are shared out, and bounds re-cut, "
        "as lengths and loads suggest; GET /buckets says why. off: labels are ignored. Must be "
        "equal in all replicas of a namespace.",
    )

    @model_validator(mode="after")
    def _the_policies_have_these_options(self) -> Self:
        chosen = dict.fromkeys((self.policy, self.prefill_policy or self.policy, self.decode_policy))
        owned = {name: self.options_of(name) for name in chosen}
        strangers = self.policy_options.keys() - set().union(*owned.values())
        # Of an option that none of them has, the policy itself tells which there are.
        make_policy(self.policy, {name: self.policy_options[name] for name in strangers} | owned[self.policy])
        for name, options in owned.items():
            if name != DECODE_COST:
                make_policy(name, options)
        return self

    def options_of(self, policy: str) -> dict[str, float]:
        """Those of ``policy_options`` that one of the chosen policies has."""
        kind = POLICIES[policy].options if policy in POLICIES else None
        known = {option.name for option in fields(kind)} if kind is not None else set()
        return {name: value for name, value in self.policy_options.items() if name in known}


class AdmissionSettings(Section):
    """How much a worker is given before requests wait here."""

    backlog_target_s: float = setting(
        0.5,
        "Prefill that a worker is given ahead, in seconds that it really takes; beyond it requests wait "
        "here, where order still counts. Longer than the engine stands still between an answer and the next "
        "request, and than a chunk of short prompts that it prefills together; no longer, since what an "
        "engine queues itself is served in its own order.",
        gt=0,
    )
    backlog_target_s_max: float = setting(
        4.0,
        "Upper bound of the same in predicted seconds. Where queues end earlier than predicted (several "
        "data-parallel ranks, prompts prefilled together) the target grows by what was observed, up to this.",
        flag="backlog-target-max-secs",
        gt=0,
    )
    worker_running_max: int = setting(
        0,
        "Requests that a worker has in flight at most, if neither its label max_running_requests nor its "
        "engine says (SGLang does, in its server info; vLLM: --max-num-seqs). 0: no bound.",
        ge=0,
    )
    kv_ratio_max: float = setting(
        0.95,
        "Share of a worker's KV capacity that its running requests may hold, above 0, where its engine "
        "reports it; beyond it the next one would wait in the engine. 1 and more: no bound.",
        flag="kv-usage-max",
        gt=0,
    )
    engine_metrics_interval_s: float = setting(
        2.0,
        "Time between two looks at a busy worker's /metrics, by one of the replicas, in seconds; longer if "
        "one replica would look at more than 50 workers a second. 0: never, and only what the gateway itself "
        "has in flight counts.",
        flag="engine-metrics-interval-secs",
        ge=0,
    )
    report_age_s_max: float = setting(
        10.0,
        "Age in seconds at which what a worker's /metrics said is ignored. An engine that reports nothing, "
        "or nothing new, never stops dispatch.",
        flag="engine-metrics-age-max-secs",
        gt=0,
    )
    ttft_slo_s: float = setting(
        0.0,
        "Time to first token that is promised, in seconds: a request predicted to miss it is rejected (429) "
        "before it costs anything. 0: nobody is rejected for it.",
        flag="ttft-slo-secs",
        ge=0,
    )
    ttft_slo_s_per_1k_tokens: float = setting(
        0.0,
        "What is added to admission.ttft_slo_s for each 1,000 tokens of the prompt, in seconds.",
        flag="ttft-slo-secs-per-1k-tokens",
        ge=0,
    )
    tpot_slo_s: float = setting(
        0.0,
        "Time per output token that is promised, in seconds: a request is rejected (429) if so many would be "
        "decoding when its prefill ends that it misses it. 0: nobody is rejected for it.",
        flag="tpot-slo-secs",
        ge=0,
    )

    @model_validator(mode="after")
    def _the_target_is_within_its_bound(self) -> Self:
        if self.backlog_target_s_max < self.backlog_target_s:
            raise ValueError("backlog_target_s_max must not be below backlog_target_s")
        return self


class UpstreamSettings(Section):
    """Connections to workers."""

    connect_timeout_s: float = setting(
        5.0,
        "Longest time to connect to a worker, TLS included, in seconds; then another worker is tried.",
        gt=0,
    )
    first_byte_timeout_s: float = setting(
        300.0,
        "Longest wait for the first byte of a streamed answer, in seconds. It includes the wait in the "
        "engine's queue and the prefill, which takes minutes for the longest prompts. Answers that are "
        "not streamed start when they are complete: server.request_timeout_s limits those.",
        gt=0,
    )
    idle_timeout_s: float = setting(
        120.0,
        "Longest gap between two pieces of an answer, in seconds; then the stream ends with an error event.",
        flag="stream-idle-timeout-secs",
        gt=0,
    )
    connections_max: int = setting(
        8192,
        "Most connections of one process to one worker; a request takes one until its answer ends. Beyond "
        "it as many requests wait for one, for at most upstream.connect_timeout_s. The default leaves the "
        "queue to the engine, and eight processes with that many reach the 65,535 open files that vLLM and "
        "SGLang allow themselves. A stream takes two open files of ours: the start warns if the hard limit "
        "(ulimit -Hn) is below twice this.",
        flag="upstream-connections-max",
        ge=1,
    )
    keepalive_s: float = setting(
        3.0,
        "Idle time after which we close a connection to a worker, in seconds. Keep it below the engine's "
        "own (5 s for uvicorn, which SGLang and vLLM use), else requests are sent into closing "
        "connections.",
        flag="upstream-keepalive-secs",
        ge=0,
    )
    verify: bool = setting(
        True,  # noqa: FBT003 - a default, not a call's flag
        "Whether the certificates of https workers are verified.",
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

    @model_validator(mode="after")
    def _a_key_needs_its_certificate(self) -> Self:
        if self.client_key and not self.client_cert:
            raise ValueError("client_key needs client_cert")
        return self


class ReliabilitySettings(Section):
    """Redispatch and circuit breakers."""

    retry_max_retries: int = setting(
        5,
        "How often a request that failed before the first byte of its answer is redispatched. The default "
        "is the peers'; no worker gets the same request twice while another can take it.",
        ge=0,
        le=100,
    )
    disable_retries: bool = setting(
        False,  # noqa: FBT003 - a default
        "Never redispatch: a worker's own error passes through.",
    )
    retry_budget_ratio: float = setting(
        0.2,
        "Redispatches allowed as a share of all requests, 0 to 1, beyond a small floor. It keeps a sick "
        "fleet from being hammered.",
        ge=0,
        le=1,
    )
    cb_failure_threshold: int = setting(
        10,
        "Failures in a row, of one replica's requests, after which all replicas eject a worker. The default "
        "is the peers'.",
        ge=1,
    )
    cb_success_threshold: int = setting(
        3,
        "Successful probes in a row after which an ejected worker takes requests again, of all replicas; "
        "fleet.slow_start_s says how fast. The default is the peers'.",
        ge=1,
    )
    cb_timeout_duration_secs: float = setting(
        60.0,
        "Time after which an ejected worker gets one request of the whole gateway as a probe, in seconds. "
        "The default is the peers'.",
        gt=0,
    )
    disable_circuit_breaker: bool = setting(
        False,  # noqa: FBT003 - a default
        "Never eject a worker for failing requests; health checks still count.",
    )
    stall_factor: float = setting(
        4.0,
        "How much longer than predicted a prefill or decode worker may take for its part of a request that "
        "two of them share. A worker that takes longer, and has shown no progress with anything else "
        "meanwhile, has failed it, and the request is redispatched. Predictions are fitted to within a "
        "factor of two; before they are, nothing is given up. 0 turns it off.",
        ge=0,
    )
    stall_floor_s: float = setting(
        10.0,
        "What reliability.stall_factor adds to what it allows, in seconds: engines pause for seconds now and "
        "then, to compile a kernel or a grammar.",
        flag="stall-floor-secs",
        gt=0,
    )


class QueueSettings(Section):
    """Requests that wait for a worker with room, in one order over all replicas."""

    disable_queue: bool = setting(
        False,  # noqa: FBT003 - a default
        "Never let a request wait here: each goes to its worker at once, and waits in the engine's queue, in "
        "the engine's order.",
    )
    size: int = setting(
        10_000,
        "Requests that may wait, over all replicas; more are rejected with 429 and a Retry-After of the time "
        "that those who wait will take. 0 lets none wait: what no worker has room for is rejected. The "
        "default only keeps memory bounded; queue.timeout_s ends long waits.",
        flag="queue-size",
        ge=0,
    )
    tokens_max: int = setting(
        50_000_000,
        "Uncached prompt tokens that may wait, over all replicas; the request that reaches the bound is the "
        "last one let in. 0 turns the bound off. The default is seven minutes of prefill of eight workers.",
        flag="queue-tokens-max",
        ge=0,
    )
    drain_s_max: float = setting(
        0.0,
        "Predicted time that what waits for a model will take its workers, in seconds; more requests are "
        "rejected. An overload is forgotten after so long: 10 recovers in ten seconds, and rejects more of a "
        "burst. 0 turns the bound off, which is the default, because nobody is sent away for a prediction "
        "unless you ask for it.",
        flag="queue-drain-secs-max",
        ge=0,
    )
    timeout_s: float = setting(
        60.0,
        "Longest wait for a worker, in seconds; then the request is answered with 408. The default is the "
        "peers'. A client may set a shorter time, for all of its request, with the header x-request-timeout.",
        flag="queue-timeout-secs",
        gt=0,
    )
    uncached_weight: float = setting(
        4.0,
        "Weight k of the work: requests go by arrival plus k times their predicted prefill, in seconds. "
        "So no request is overtaken by one that arrived more than k times its own prefill later. 0 is first "
        "come, first served; a large value is the least work first.",
        flag="queue-uncached-weight",
        ge=0,
        le=1000,
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
    )
    default_class: str = setting(
        "normal",
        "Class of a request that names none.",
        flag="queue-default-class",
        allowed="one of queue.classes",
    )
    low_values_first: bool = setting(
        False,  # noqa: FBT003 - a default
        "Whether a lower number is the more urgent priority, as vLLM has it. The default is SGLang's order.",
        flag="queue-low-values-first",
    )
    fairness_quantum_s: float = setting(
        1.0,
        "How far a tenant or class may be ahead of its share before others that wait go first, in seconds of "
        "its share of the fleet. Shorter is fairer, longer keeps the order by uncached work, and locality.",
        flag="queue-fairness-quantum-secs",
        gt=0,
    )
    fairness_window_s: float = setting(
        60.0,
        "Time over which service is compared, in seconds: nobody saves up more than that.",
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


class OffloadSettings(Section):
    """Which requests are prefilled in another site than they are decoded in; needs fleet.links."""

    disable_remote_prefill: bool = setting(
        False,  # noqa: FBT003 - a default
        "Never prefill in another site. The default follows fleet.links: without links there is nothing to "
        "decide.",
    )
    threshold_tokens: int = setting(
        0,
        "Uncached tokens of a prompt above which it may be prefilled in another site. 0: the slow loop finds "
        "the threshold from what comes (see roles.interval_s), and until it has, seconds alone decide.",
        flag="offload-threshold-tokens",
        ge=0,
    )
    scarce_above: float = setting(
        0.7,
        "Utilisation of a link, as a share of what KV may take of it, above which bandwidth is scarce: then "
        "only the cache of the decode worker's site counts, and no cached prefix crosses. Below saturation, "
        "since a queue grows before a link is full.",
        flag="offload-scarce-above",
        gt=0,
        le=1,
    )
    abundant_below: float = setting(
        0.5,
        "Utilisation below which bandwidth is abundant again. Far enough below offload.scarce_above that one "
        "long prompt does not switch back and forth.",
        flag="offload-abundant-below",
        ge=0,
        le=1,
    )
    wait_s_max: float = setting(
        2.0,
        "Wait for a link, or for prefill workers of the other site, above which bandwidth counts as scarce "
        "whatever its utilisation, in seconds; and by how much the queue of one site must be longer than the "
        "other's for seconds to overrule the threshold. The default is about what a prompt of 32K tokens "
        "takes to prefill on eight H200.",
        flag="offload-wait-secs-max",
        gt=0,
    )

    @model_validator(mode="after")
    def _there_is_room_between_scarce_and_abundant(self) -> Self:
        if self.abundant_below >= self.scarce_above:
            raise ValueError("abundant_below must be below scarce_above")
        return self


class RoleSettings(Section):
    """The slow loop over how workers are shared between prefill and decode."""

    mode: Literal["off", "recommend", "apply"] = setting(
        "recommend",
        "What becomes of the best shares of prefill and decode workers that one replica works out from what "
        "came lately. recommend: GET /roles and a log line tell them. apply: convertible workers (label "
        "convertible=true) also change their roles: they drain, switch and come back. off: nothing is worked "
        "out, and the threshold of remote prefill stays as set. The default changes nothing by itself.",
        flag="roles",
    )
    interval_s: float = setting(
        30.0,
        "Time between two looks of the slow loop, in seconds.",
        flag="roles-interval-secs",
        ge=1,
    )
    dwell_s_min: float = setting(
        600.0,
        "Shortest time between two changes of roles, in seconds. Much longer than a drain and a cold cache "
        "cost.",
        flag="roles-dwell-secs-min",
        ge=0,
    )
    gain_ratio_min: float = setting(
        0.05,
        "Least predicted gain in requests a second for which roles change, as a share: 0.05 is 5 %. Above "
        "the model's own error, so that noise changes nothing.",
        flag="roles-gain-min",
        ge=0,
    )


class SharedSettings(Section):
    """The log that replicas share through Redis."""

    redis_url: RedisUrl = setting(
        "",
        "Redis or Valkey that replicas share: redis://[USER:PASSWORD@]HOST[:PORT][/DB], unix:///PATH, "
        "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE or redis+cluster://HOST:PORT,HOST:PORT; with rediss "
        "instead of redis over TLS. User and password are the data server's; those of the Sentinels follow "
        "as ?sentinel_username= and ?sentinel_password=, TLS files as ?ssl_ca_certs=, ?ssl_certfile= and "
        "?ssl_keyfile=. "
        "Empty: a Valkey of our own is started, which the processes of this host share and nobody else.",
    )
    namespace: str = setting(
        "default",
        "Name of the fleet: replicas with the same name and Redis share what they know.",
        allowed="1 to 64 letters, digits, '.', '_' or '-'",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
    )
    replica_id: str = setting(
        "",
        "Name of this replica in the log, unique in the namespace; processes beyond the first append "
        "their number. Empty: made from the host name, the process id and random bits.",
        allowed="up to 64 letters, digits, '.', '_' or '-'",
        pattern=r"^[A-Za-z0-9._-]{0,64}$",
    )
    flush_interval_ms: float = setting(
        3.0,
        "Pause between two flushes to Redis, in milliseconds: what is learned meanwhile goes together. "
        "Longer saves CPU and makes siblings learn later. What happens after a quiet moment goes at once.",
        ge=0,
        le=1000,
    )
    heartbeat_ttl_s: float = setting(
        3.0,
        "Time without a heartbeat after which siblings drop what a replica had in flight, in seconds. It "
        "is refreshed at least four times as often.",
        ge=0.5,
        le=60,
    )
    snapshot_interval_s: float = setting(
        10.0,
        "Time between two snapshots, in seconds. Shorter makes new replicas warm sooner and costs CPU.",
        ge=1,
    )
    buffer_ops_max: int = setting(
        100_000,
        "Most operations kept while Redis is gone; the oldest are dropped and counted. The default is a "
        "minute at 500 requests per second.",
        ge=1000,
    )


class TenancySettings(Section):
    """How requests of different tenants are kept apart."""

    tenant_header: HeaderName = setting(
        "x-tenant-id",
        "Request header that names the tenant. Tenants never match each other's prefixes. A request "
        "without it belongs to the tenant ''. With keys_file it is believed only of requests that carry "
        "server.api_key; tenants are then known by their keys.",
    )
    keys_file: str = setting(
        "",
        "YAML or JSON file of tenants and the hashes of their keys, which `cacheway keys` makes and checks; "
        "see docs/tenants.md. Requests without a valid key then get 401, and the admin API needs "
        "server.api_key. Read again within two seconds of a change. Empty: tenants have no keys.",
        flag="tenant-keys-file",
    )


class ObservabilitySettings(Section):
    """Logs and metrics."""

    log_level: LogLevel = setting("info", "Least severe level that is logged.")
    request_logs: bool = setting(
        True,  # noqa: FBT003 - a default
        "Whether each request is logged with one line at its end. Never holds prompt text.",
    )
    request_trace: str = setting(
        "",
        "File that gets one JSON line per request, for `cacheway simulate`: when it came, its lengths, the "
        "hashes of its blocks, how it went. Never prompt text. Several processes may share it. Empty: none.",
    )
    request_trace_bytes_max: int = setting(
        1 << 30,
        "Size at which that file is renamed to FILE.1, which replaces the one before, in bytes: no more than "
        "twice as much is kept. The default is about 600,000 requests of 30,000 tokens.",
        ge=1_000_000,
    )
    prometheus_port: int | None = setting(
        None,
        "Port of a second listener that serves only /metrics. Empty: /metrics is on the data port only, "
        "so that two gateways on one host need no second free port; the peers use 29000.",
        ge=1,
        le=65535,
    )
    prometheus_host: str = setting(
        "0.0.0.0",  # noqa: S104 - scraped from outside the container
        "Address of that listener.",
        allowed="an address or a host name",
        pattern=r"^\S+$",
    )


class Settings(Section):
    """All settings of one gateway."""

    server: ServerSettings = ServerSettings()
    fleet: FleetSettings = FleetSettings()
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
