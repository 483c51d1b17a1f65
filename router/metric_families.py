"""The metrics of the gateway: each with its labels, buckets and meaning, declared once.

`router.metrics` records into these families and ``docs/metrics.md`` is written from them. Base units,
one prefix, ``_total`` for counters. Label values come from enums or from the fleet, never from a request.

With several processes on one host, each answers a scrape for all of them: counters and histograms are summed,
gauges combined as `Family.combine` says. All processes share the state of workers, so the scraped one reports
it alone.
"""

from dataclasses import dataclass
from typing import Literal

PREFIX = "cacheway"

SECONDS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    320.0,
    640.0,
)
TOKEN_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.06,
    0.08,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
)
DECISION_SECONDS = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)
LAG_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
ERROR_SECONDS = (-10.0, -2.5, -1.0, -0.5, -0.25, -0.1, -0.05, 0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
ERROR_TOKENS = (-65536.0, -16384.0, -4096.0, -1024.0, -256.0, 0.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One metric.

    Attributes:
        name: Without prefix and without ``_total``.
        kind: ``worker`` is a gauge that is read from its owner when scraped.
        buckets: Inclusive upper bounds of a histogram.
        combine: Rule that makes one gauge of those of several processes.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram", "worker"]
    about: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    combine: Literal["livesum", "livemax"] = "livemax"

    @property
    def exposed_name(self) -> str:
        """The name as scraped."""
        return f"{PREFIX}_{self.name}{'_total' if self.kind == 'counter' else ''}"


REQUESTS = Family(
    "requests",
    "counter",
    "Requests that ended, by outcome: completed or an error code.",
    ("endpoint", "outcome"),
)
REQUESTS_AT_FAULT = Family(
    "requests_at_fault",
    "counter",
    "Requests that two workers failed one after the other: this counts in no circuit.",
)
REQUEST_SECONDS = Family(
    "request_duration_seconds",
    "histogram",
    "From the last byte of the request to the last byte of the answer.",
    ("endpoint",),
    SECONDS,
)
TTFT_SECONDS = Family(
    "ttft_seconds",
    "histogram",
    "Time to first token: from the last byte of a streaming request to the first byte of its answer, or "
    "to its first token where the answer begins before that (/v1/responses).",
    buckets=SECONDS,
)
ITL_SECONDS = Family(
    "inter_token_latency_seconds",
    "histogram",
    "Mean gap between two tokens of a streamed answer; one observation per answer.",
    buckets=TOKEN_SECONDS,
)
DECISIONS = Family(
    "decisions", "counter", "Placements, by policy and reason of the choice.", ("policy", "reason")
)
DECISION_TIME = Family(
    "decision_seconds",
    "histogram",
    "Time taken by one placement: match, score and pick.",
    buckets=DECISION_SECONDS,
)
SHADOW_DECISIONS = Family(
    "shadow_decisions",
    "counter",
    "Placements that a second policy was asked about, by that policy and outcome: agreed, differed, or "
    "unplaced (it considered no worker).",
    ("policy", "outcome"),
)
SHADOW_TTFT_DIFFERENCE = Family(
    "shadow_ttft_difference_seconds",
    "histogram",
    "Predicted time to first token of the second policy's choice less that of the active one's: below 0, it "
    "would have been sooner.",
    buckets=ERROR_SECONDS,
)
SHADOW_CACHED_DIFFERENCE = Family(
    "shadow_cached_difference_tokens",
    "histogram",
    "Predicted cached tokens of the second policy's choice less those of the active one's.",
    buckets=ERROR_TOKENS,
)
MODEL_SPLITS = Family(
    "model_splits",
    "counter",
    "Requests of a model that is split (models.splits), by that model and its part; with "
    "_elsewhere if no worker of the part could take it.",
    ("model", "part"),
)
MIRRORED_REQUESTS = Family(
    "mirrored_requests",
    "counter",
    "Requests drawn for a copy to a second fleet (models.mirror_url), by outcome: answered, refused, failed, "
    "late; or not copied: too_many, too_large.",
    ("outcome",),
)
ADAPTER_LOADS = Family(
    "adapter_loads",
    "counter",
    "Loads of LoRA adapters at workers (models.adapters), by outcome: loaded, failed, unloaded or "
    "not_unloaded.",
    ("outcome",),
)
OWN_POLICY_DECISIONS = Family(
    "own_policy_decisions",
    "counter",
    "Times that a policy of your own priced the candidates of a request (docs/own-policy.md).",
    ("policy",),
)
OWN_POLICY_LATE = Family(
    "own_policy_late",
    "counter",
    "Those of these decisions that took longer than placement.own_policy_budget_us.",
    ("policy",),
)
OWN_POLICY_SECONDS = Family(
    "own_policy_seconds",
    "counter",
    "Seconds that it took for all of them together.",
    ("policy",),
)
OWN_POLICY_OFF = Family(
    "own_policy_off",
    "gauge",
    "1 if this replica switched it off, by the reason: raised (it failed), or late (it was too slow too "
    "often). placement.own_policy_fallback decides in its place.",
    ("policy", "reason"),
)
PROMPT_TOKENS = Family("prompt_tokens", "counter", "Prompt tokens, as workers reported them.")
OUTPUT_TOKENS = Family("output_tokens", "counter", "Generated tokens, as workers reported them.")
IMPOSSIBLE_USAGE = Family(
    "impossible_usage",
    "counter",
    "Answers with impossible token counts: more cached than the prompt has, or a number beyond any context. "
    "Nothing is learned from them.",
)
REPORTED_PROMPT_TOKENS = Family(
    "reported_prompt_tokens",
    "counter",
    "Prompt tokens of the answers whose worker also reported cached tokens.",
)
REPORTED_CACHED_TOKENS = Family(
    "reported_cached_tokens", "counter", "Prompt tokens found in the worker's cache, as reported."
)
PREDICTED_CACHED_TOKENS = Family(
    "predicted_cached_tokens",
    "counter",
    "Prompt tokens predicted to be in the worker's cache, of the same answers.",
)
CACHED_ERROR = Family(
    "cached_tokens_error",
    "histogram",
    "Predicted minus reported cached tokens of one answer: above 0, the worker had less than expected.",
    buckets=ERROR_TOKENS,
)
LOOP_LAG = Family(
    "event_loop_lag_seconds",
    "histogram",
    "Lateness of the event loop, sampled ten times a second under load; a chunk waits as long.",
    buckets=LAG_SECONDS,
)
TTFT_ERROR = Family(
    "ttft_error_seconds",
    "histogram",
    "Observed minus predicted time to first token of one attempt: above 0, the worker was slower.",
    buckets=ERROR_SECONDS,
)
REDISPATCHES = Family(
    "redispatches",
    "counter",
    "Requests sent to another worker before the first byte, by failure, or once more to the same worker that "
    "had closed a kept connection (stale_connection).",
    ("reason",),
)
CONTINUATIONS = Family(
    "continuations",
    "counter",
    "Streams to be continued whose worker broke off, by outcome: continued (another worker answers), ended "
    "(only the last event was missing), refused (the engine takes no message to continue), failed (no worker "
    "answered); not continued: not_plain, limit, no_tokens_left, no_other_attempt.",
    ("result",),
)
UPSTREAM_ERRORS = Family(
    "upstream_errors", "counter", "Failed attempts, by worker and error code.", ("worker", "kind")
)
CLIENT_DISCONNECTS = Family(
    "client_disconnects", "counter", "Clients that left before their answer was complete."
)
CLIENT_CONNECTIONS = Family(
    "client_connections", "gauge", "Connections of clients that are open.", combine="livesum"
)
PICKER_STREAMS = Family(
    "picker_streams", "gauge", "Requests that proxies have asked about and carry now.", combine="livesum"
)
PICKER_PASSED = Family(
    "picker_passed",
    "counter",
    "Requests of proxies that went to any worker: without a body, or for a path that is not placed.",
)
PICKER_STREAMS_CUT = Family(
    "picker_streams_cut",
    "counter",
    "Streams of proxies that the picker ended early: too_many (answered with 429), out_of_order (the proxy "
    "broke the protocol), stalled (the proxy read nothing for two minutes), crashed.",
    ("reason",),
)
PICKER_SERVED_ELSEWHERE = Family(
    "picker_served_elsewhere",
    "counter",
    "Answers that a proxy got from another endpoint than the one chosen here.",
)
CLIENTS_REFUSED = Family(
    "clients_refused",
    "counter",
    "Connections closed as they were made (connections, connections_per_client), idle ones closed for them "
    "(idle), and requests answered with 429 (requests_per_client, held_bytes), by the limit that did it.",
    ("reason",),
)
HELD_BYTES = Family(
    "held_body_bytes",
    "gauge",
    "Bytes of request bodies that are held: they come in, wait for a worker, or may have to be sent to one "
    "again, until their answer begins. The bound is server.held_bytes_max.",
    combine="livesum",
)
REQUEST_BYTES = Family("request_body_bytes", "counter", "Bytes of request bodies.")
ANSWER_BYTES = Family("answer_body_bytes", "counter", "Bytes of answer bodies passed on.")
INFLIGHT_REQUESTS = Family(
    "inflight_requests", "gauge", "Requests of this gateway that have not ended.", combine="livesum"
)
WAITING_REQUESTS = Family(
    "waiting_requests",
    "gauge",
    "Requests of this gateway that wait for a worker with room, by class.",
    ("class",),
    combine="livesum",
)
WAITING_TOKENS = Family(
    "waiting_tokens", "gauge", "Uncached prompt tokens of those requests.", ("class",), combine="livesum"
)
QUEUE_DRAIN = Family(
    "queue_drain_seconds",
    "gauge",
    "Predicted time in which the workers will serve the waiting requests of all replicas; of the model and "
    "length bucket where it is longest.",
)
WAIT_SECONDS = Family(
    "wait_seconds", "histogram", "Wait of requests that then went to a worker.", ("class",), SECONDS
)
WAITS = Family(
    "waits",
    "counter",
    "Waits that ended, by their end: dispatched, expired, displaced, left (by the client, or at shutdown) or "
    "no_worker; and rejected, which never began.",
    ("class", "outcome"),
)
INVERSIONS = Family(
    "queue_inversions",
    "counter",
    "Requests of any replica that went before a better one which waited for the same worker: an effect of "
    "the log's delay.",
)
INVERSION_MAX = Family(
    "queue_inversion_max_seconds", "gauge", "Greatest difference of keys between two such requests."
)
ROOMS_OVERDUE = Family(
    "queue_rooms_overdue",
    "counter",
    "Times a worker's room was taken because the replica with the better request left it unused.",
)
DEGRADED = Family("degraded", "gauge", "1 while a component is degraded; serving goes on.", ("component",))
SETTINGS_OVERRIDDEN = Family(
    "settings_overridden",
    "gauge",
    "Settings changed at run time, by state: used, or refused by this replica, which keeps its own value.",
    ("state",),
)
DISCOVERY_PODS = Family(
    "discovery_pods",
    "worker",
    "Pods that discovery selected, by state: used, or why not (see docs/discovery.md).",
    ("state",),
)
DISCOVERY_LIST_AGE = Family(
    "discovery_list_age_seconds",
    "worker",
    "Time since all selected pods were last listed; while it grows, workers stay as they are.",
)
DISCOVERY_FAILURES = Family(
    "discovery_api_errors",
    "counter",
    "Lists and watches of pods that failed, by kind of failure.",
    ("trouble",),
)
DISCOVERY_RESTARTS = Family(
    "discovery_watch_restarts", "counter", "Watches of pods that ended otherwise than by their time."
)
DISCOVERY_MISSED = Family(
    "discovery_missed_changes", "counter", "Changes of pods that a list found and the watch did not tell."
)
LOG_LAG = Family("log_lag_seconds", "gauge", "Age of the newest entry of the shared log when it was applied.")
SNAPSHOT_AGE = Family("snapshot_age_seconds", "gauge", "Age of the newest snapshot of the shared state.")
LOG_BUFFER = Family("log_buffered_ops", "gauge", "Operations waiting to be sent to Redis.", combine="livesum")
OPS_PUBLISHED = Family("ops_published", "counter", "Operations of this gateway sent to the shared log.")
OPS_APPLIED = Family("ops_applied", "counter", "Operations of other replicas applied.")
OPS_DROPPED = Family("ops_dropped", "counter", "Own operations dropped because the buffer was full.")
PLACEMENTS_SHORTENED = Family(
    "placements_shortened",
    "counter",
    "Placements of this gateway told by the new part of their prompt.",
)
PLACEMENTS_INCOMPLETE = Family(
    "placements_incomplete",
    "counter",
    "Placements of other replicas that go on from a prompt which this gateway did not know and asked for.",
)
REGISTERS_DIFFER = Family(
    "registers_differ",
    "gauge",
    "Living replicas that have known other words of a kind of register than this one for ten seconds.",
    ("register",),
)
REGISTERS_PUBLISHED_AGAIN = Family(
    "registers_published_again",
    "counter",
    "Times this replica published all registers of a kind again, since another replica knew other words.",
    ("register",),
)
OPS_SKIPPED = Family(
    "ops_skipped",
    "counter",
    "Operations of the shared log that were skipped: a newer version wrote them (unknown_op, "
    "unknown_version), their bytes or values are wrong (invalid), the fold refused them (failed), their "
    "time is a minute ahead (future), or a snapshot left them out since they cannot be encoded "
    "(unencodable).",
    ("reason",),
)
SNAPSHOTS_REFUSED = Family(
    "snapshots_refused", "counter", "Snapshots that could not be used; the log says why (snapshot.refused)."
)
TREE_BLOCKS = Family("tree_blocks", "gauge", "Distinct KV blocks in the prefix tree of one process.")
TREE_NODES = Family("tree_nodes", "gauge", "Nodes of the prefix tree of one process.")
KV_EVENT_BATCHES = Family("kv_events_batches", "counter", "Batches of KV events that this replica took in.")
KV_EVENTS = Family(
    "kv_events_received",
    "counter",
    "KV events in them, by kind: stored, removed, cleared, or unknown, which are passed over.",
    ("kind",),
)
KV_EVENTS_INVALID = Family(
    "kv_events_invalid",
    "counter",
    "Unreadable messages: no batch, or a damaged batch, after which a worker is known by history.",
    ("what",),
)
KV_EVENT_GAPS = Family("kv_events_gaps", "counter", "Times that a batch of KV events was missing.")
KV_EVENT_REPLAYS = Family(
    "kv_events_replays",
    "counter",
    "Times that old batches were asked for, by outcome: answered or unanswered.",
    ("outcome",),
)
KV_EVENT_LOSSES = Family(
    "kv_events_losses",
    "counter",
    "Times that all events of a publisher became void, by reason: restart (another process), gap (some is "
    "missing for good), or again (it is told once more from the beginning).",
    ("reason",),
)
KV_EVENT_FORGETS = Family(
    "kv_events_forgets", "counter", "Times that a worker was forgotten because of its KV events."
)
KV_EVENT_CORRECTIONS = Family(
    "kv_events_corrections",
    "counter",
    "Operations that corrected the believed blocks of a worker: its engine does not hold them, or holds "
    "others.",
)
KV_EVENT_BLOCKS = Family(
    "kv_events_blocks",
    "worker",
    "KV blocks of a worker that are known from its events, on the replica that follows it.",
    ("worker",),
)
KV_EVENT_LAG = Family(
    "kv_events_lag_seconds",
    "worker",
    "Age of a worker's last batch when it was read, by the engine's clock.",
    ("worker",),
)
KV_EVENT_STATE = Family(
    "kv_events_worker_state",
    "worker",
    "1 for the state of following a worker: silent, refused, connecting, joining, partial or live "
    "(docs/kv-events.md); told by the replica that follows it.",
    ("worker", "state"),
)
TOKENIZED_PROMPTS = Family(
    "tokenizing_prompts",
    "counter",
    "Requests for models with a tokenizer, by how their prompts got token ids (remembered, at_once, "
    "in_a_thread), or why they kept their text identity (unsupported, too_large, busy, late, failed, "
    "set_aside).",
    ("how",),
)
TOKENIZING_HELD = Family(
    "tokenizing_seconds",
    "histogram",
    "Time for which a request was held up for the token ids of its prompts.",
    buckets=DECISION_SECONDS,
)
TOKENIZING_MISCOUNTS = Family(
    "tokenizing_miscounts",
    "counter",
    "Answers whose engine counted another number of prompt tokens than the gateway, by model as the settings "
    "name it: its template or tokenizer is another one.",
    ("model",),
)
ENGINE_REPORTS = Family("engine_reports", "counter", "Looks at workers' metrics that told their load.")
ENGINE_REPORT_FAILURES = Family(
    "engine_report_failures",
    "counter",
    "Looks at workers' metrics that did not: no answer, or no load in it.",
)
PROBES_REBUILT = Family(
    "probes_rebuilt",
    "counter",
    "Times that health checks were stuck (none connected or ended), so that the gateway rebuilt its "
    "connections to workers. Not 0 where the lookup of all names hangs; elsewhere a fault of the gateway.",
)
HEADER_NAMES_DROPPED = Family(
    "header_names_dropped",
    "gauge",
    "Names of clients' headers that do not pass to workers, of the first 256 names seen since the last "
    "change of upstream.forward_headers.",
    combine="livesum",
)
SESSIONS = Family("sessions", "gauge", "Sessions whose last worker is remembered.", combine="livesum")
SESSIONS_UNTOLD = Family(
    "sessions_untold",
    "counter",
    "Workers of sessions that other replicas were not told of, since Redis did not take them in time.",
)
STORED_RESPONSES = Family(
    "stored_responses", "gauge", "Stored responses whose worker is remembered.", combine="livesum"
)
STORED_RESPONSES_UNTOLD = Family(
    "stored_responses_untold",
    "counter",
    "Stored responses that other replicas were not told of, since Redis did not take them in time.",
)
LOG_LINES_DROPPED = Family(
    "log_lines_dropped", "counter", "Log lines dropped because the output was blocked."
)
TRACE_LINES_DROPPED = Family(
    "request_trace_lines_dropped",
    "counter",
    "Lines of the request trace dropped because the disk was full or slow.",
)
TENANT_REQUESTS = Family(
    "tenant_requests",
    "counter",
    "Requests that ended, of each tenant of the keys file, by outcome as in requests_total.",
    ("tenant", "outcome"),
)
TENANT_PROMPT_TOKENS = Family(
    "tenant_prompt_tokens", "counter", "Prompt tokens of each tenant, as workers reported them.", ("tenant",)
)
TENANT_CACHED_TOKENS = Family(
    "tenant_cached_tokens",
    "counter",
    "Prompt tokens of each tenant that workers found in their caches, as reported.",
    ("tenant",),
)
TENANT_OUTPUT_TOKENS = Family(
    "tenant_output_tokens",
    "counter",
    "Generated tokens of each tenant, as workers reported them.",
    ("tenant",),
)
LIMIT_REJECTIONS = Family(
    "limit_rejections",
    "counter",
    "Requests rejected by a limit of their tenant: requests, tokens or concurrent_tokens.",
    ("tenant", "limit"),
)
LIMIT_ROUNDS = Family("limit_rounds", "counter", "Round trips to Redis for the limits of tenants.")
LIMIT_SHARES = Family(
    "limit_shares",
    "counter",
    "Requests that a replica decided by its share of a limit because Redis did not answer in time.",
)
KEYS_READ = Family(
    "keys_file_reads",
    "counter",
    "Times a new keys file was read: loaded, or refused because something in it is wrong.",
    ("outcome",),
)
ADMIN_CHANGES = Family(
    "admin_changes",
    "counter",
    "Requests to the admin API for a change: changed, refused for want of a token, or failed otherwise.",
    ("outcome",),
)
ENCODER_PARTS = Family(
    "encoder_parts",
    "counter",
    "Parts of requests that came for encoders, by outcome: completed, failed (no encoder answered, or the "
    "last one with an error), rejected (it was no call, or no encoder may take it) or client_left.",
    ("outcome",),
)
ENCODER_MOVES = Family(
    "encoder_moves",
    "counter",
    "Parts that went to another encoder than that of their media, because it had too much to do.",
)
HANDOVERS = Family(
    "handovers",
    "counter",
    "Attempts that a prefill and a decode worker shared, by hand-over protocol and outcome: completed, "
    "prefill_failed, decode_failed, transfer_late (a link did not bring the KV in time, so it was prefilled "
    "on this side), refused (an error that is the request's fault) or client_left.",
    ("protocol", "outcome"),
)
LEG_FAILURES = Family(
    "leg_failures",
    "counter",
    "Legs that failed before the other one did, by hand-over protocol, leg (prefill, decode) and error code.",
    ("protocol", "leg", "kind"),
)
HANDOVER_EVENTS = Family(
    "handover_events",
    "counter",
    "Events in hand-overs beside their ends: params_missing (a prefill worker answered without "
    "kv_transfer_params, so its decode worker prefilled again), query_failed (Mooncake's bootstrap server "
    "did not say its engine ids), aborted (an SGLang engine was told to give up a leg whose other leg failed "
    "or whose client left).",
    ("protocol", "event"),
)
WHOLE_AT_DECODE = Family(
    "whole_at_decode",
    "counter",
    "Requests that a decode worker was given whole, since that was the sooner answer.",
    ("worker",),
)
LINK_KV_BYTES = Family(
    "link_kv_bytes", "counter", "Bytes of KV that crossed a link, as predicted from lengths.", ("link",)
)
OFFLOAD_DECISIONS = Family(
    "offload_decisions",
    "counter",
    "Decisions on the site of a request's prefill, by reason; GET /offload explains.",
    ("reason",),
)
ROLE_CHANGES = Family(
    "role_changes",
    "counter",
    "Workers to which the slow loop of this gateway gave another role, by the new one.",
    ("role",),
)
BUILD_INFO = Family("build_info", "gauge", "1, with the version as a label.", ("version",))

WORKER_STATE = Family(
    "worker_state",
    "worker",
    "1 for the state a worker is in, as this gateway sees it.",
    ("worker", "state"),
)
WORKER_ROLE = Family(
    "worker_role",
    "worker",
    "1 for the role of a worker: plain, prefill, decode or encode; with the site it stands in.",
    ("worker", "role", "site"),
)
CIRCUIT_STATE = Family(
    "circuit_state",
    "worker",
    "Circuit breaker of a worker: 0 closed, 1 half open, 2 open.",
    ("worker",),
)
WORKERS_SPARED = Family(
    "workers_spared",
    "gauge",
    "Workers that take requests although their circuits are open, since too many others are ejected.",
)
WORKER_BACKLOG = Family(
    "worker_backlog_seconds",
    "worker",
    "Prefill time reserved on a worker by all replicas.",
    ("worker",),
)
WORKER_SLOWDOWN = Family(
    "worker_slowdown",
    "worker",
    "Time that a worker takes for a prefill over that of its worker class, as learned; 1 while they do not "
    "clearly differ.",
    ("worker",),
)
WORKER_REQUESTS = Family(
    "worker_inflight_requests",
    "worker",
    "Requests in flight on a worker, of all replicas.",
    ("worker",),
)
WORKER_TOKENS = Family(
    "inflight_tokens",
    "worker",
    "Prompt and expected output tokens in flight on a worker, of all replicas.",
    ("worker",),
)
WORKER_PREFILL = Family(
    "prefill_tokens",
    "worker",
    "Uncached tokens queued for prefill on a worker, of all replicas.",
    ("worker",),
)
WORKER_HELD = Family(
    "held_tokens", "worker", "Tokens the prefix tree believes a worker to hold.", ("worker",)
)

WORKER_TARGET = Family(
    "worker_backlog_target_seconds",
    "worker",
    "Backlog up to which a worker is given more, in predicted seconds.",
    ("worker",),
)
WORKER_ROOM = Family(
    "worker_has_room",
    "worker",
    "1 while a worker would be given more: below its target backlog and its bounds on requests and KV.",
    ("worker",),
)
WORKER_RUNNING_MAX = Family(
    "worker_running_max_requests",
    "worker",
    "Most requests a worker may have in flight; no series if it is unknown.",
    ("worker",),
)
WORKER_KV_MAX = Family(
    "worker_kv_max_tokens",
    "worker",
    "Most tokens of KV that a worker's running requests may hold; no series if its capacity is unknown.",
    ("worker",),
)
REPORT_AGE = Family(
    "worker_report_age_seconds",
    "worker",
    "Age of the newest report of a worker's own metrics, read by any replica; an idle worker is not asked.",
    ("worker",),
)
REPORTED_RUNNING = Family(
    "worker_reported_running_requests",
    "worker",
    "Requests running, as the engine reported them.",
    ("worker",),
)
REPORTED_WAITING = Family(
    "worker_reported_waiting_requests",
    "worker",
    "Requests waiting in the engine, as it reported them.",
    ("worker",),
)
REPORTED_KV = Family(
    "worker_reported_kv_tokens",
    "worker",
    "Tokens of KV that running requests hold, as the engine reported them.",
    ("worker",),
)

LINK_CAPACITY = Family(
    "link_capacity_bytes_per_second",
    "worker",
    "Capacity of a link between two sites: as configured or, if that is less, as measured.",
    ("link",),
)
LINK_RESERVED = Family(
    "link_reserved_bytes_per_second",
    "worker",
    "Part of a link that all replicas have reserved for KV under way.",
    ("link",),
)
LINK_UTILISATION = Family(
    "link_utilisation_ratio",
    "worker",
    "The same as a share of the capacity that KV may take; above 1 if the link became slower meanwhile.",
    ("link",),
)
LINK_STATE = Family(
    "link_state",
    "worker",
    "1 for the state a link is in: abundant, scarce, down, or probing with one transfer.",
    ("link", "state"),
)
LINK_GOODPUT = Family(
    "link_goodput_bytes_per_second",
    "worker",
    "Rate of transfers over a link, as last measured; no series before the first.",
    ("link",),
)
LINK_RTT = Family(
    "link_rtt_seconds", "worker", "Round trip time of a link, measured or configured.", ("link",)
)
LINK_LOSS = Family(
    "link_loss_ratio", "worker", "Share of the latest transfers over a link that failed.", ("link",)
)
OFFLOAD_THRESHOLD = Family(
    "offload_threshold_tokens",
    "worker",
    "Uncached tokens above which a prompt may be prefilled in another site; no series before the first plan.",
)
ROLE_WORKERS_BEST = Family(
    "role_workers_best",
    "worker",
    "Best number of workers with a role, by the slow loop.",
    ("role",),
)
ROLE_GAIN = Family(
    "role_gain_ratio",
    "worker",
    "Predicted gain in requests of those roles over the present ones, as a share.",
)

TENANT_KEYS_END = Family(
    "tenant_keys_end_timestamp_seconds",
    "worker",
    "Unix time at which the last of a tenant's keys expires; tenants with a key that does not are left out.",
    ("tenant",),
)

TENANT_KV_SPACE = Family(
    "tenant_kv_space_ratio",
    "worker",
    "Share of the workers' KV space that a tenant's blocks fill, of tenants with a quota (`cache_share`).",
    ("tenant",),
)

FAMILIES: tuple[Family, ...] = tuple(
    entry for entry in tuple(globals().values()) if isinstance(entry, Family)
)
"""All of them, in the order above."""


def of_kind(kind: str) -> list[Family]:
    """Return the families of a kind."""
    return [family for family in FAMILIES if family.kind == kind]


_OPENING = """# Metrics

Written by `cacheway config --metrics-reference`; `make docs` writes it again.

`GET /metrics` on the data port, or on `--prometheus-port` if that is set; on the admin port in any case.
With `--workers N` any process answers for all processes of the host.

Useful expressions:

```promql
# hit ratio, as the workers report it, and as it was predicted for the same answers
rate(cacheway_reported_cached_tokens_total[5m]) / rate(cacheway_reported_prompt_tokens_total[5m])
rate(cacheway_predicted_cached_tokens_total[5m]) / rate(cacheway_reported_prompt_tokens_total[5m])
# P99 of the time to first token
histogram_quantile(0.99, sum by (le) (rate(cacheway_ttft_seconds_bucket[5m])))
# share of the moments in which the event loop was more than 2 ms late
1 - sum(rate(cacheway_event_loop_lag_seconds_bucket{le="0.002"}[5m]))
  / sum(rate(cacheway_event_loop_lag_seconds_count[5m]))
# share of the attempts with two workers that one of them failed
sum(rate(cacheway_handovers_total{outcome=~".*_failed"}[5m])) / sum(rate(cacheway_handovers_total[5m]))
# requests that decode workers have taken on, and where they stand
cacheway_worker_inflight_requests * on (worker) group_left (site) cacheway_worker_role{role="decode"}
# Gbit/s of KV on each link, and how full it is of what KV may take
8e-9 * rate(cacheway_link_kv_bytes_total[1m])
max by (link) (cacheway_link_utilisation_ratio)
# share of requests that did not complete
1 - sum(rate(cacheway_requests_total{outcome="completed"}[5m])) / sum(rate(cacheway_requests_total[5m]))
```

Gauges with a `worker` or `link` label describe the whole fleet as one replica sees it: take `max` or `avg`
over replicas, not `sum`.
"""


def metrics_reference() -> str:
    """The page ``docs/metrics.md``."""
    lines = [_OPENING, "| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        kind = "gauge" if family.kind == "worker" else family.kind
        labels = ", ".join(f"`{label}`" for label in family.labels)
        lines.append(f"| `{family.exposed_name}` | {kind} | {labels} | {family.about} |")
    return "\n".join(lines) + "\n"
