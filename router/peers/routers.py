"""Flags of sglang-router 0.3.2, smg 1.13.0 and vllm-router 0.1.17 that are none of ours.

Read in the ``router_args.py`` of their wheels; ``tests/router/peers/flags.txt`` lists all that those take.
"""

from router.peers.rows import SGLANG, SMG, VLLM, PeerFlag

TAKEN = """
sglang-router, smg, vllm-router | cache_threshold=
    --cache-threshold V
smg | cache_threshold=
    --cache-match-threshold V
sglang-router, smg, vllm-router | balance_abs_threshold=
    --balance-abs-threshold V
smg | balance_abs_threshold=
    --spill-abs-threshold V
sglang-router, smg, vllm-router | balance_rel_threshold=
    --balance-rel-threshold V
smg | balance_rel_threshold=
    --spill-rel-threshold V
smg | load_factor=
    --prefix-hash-load-factor V
sglang-router, smg | --ssl-certfile
    --tls-cert-path V
sglang-router, smg | --ssl-keyfile
    --tls-key-path V
sglang-router, smg | --upstream-client-cert
    --client-cert-path V
sglang-router, smg | --upstream-client-key
    --client-key-path V
sglang-router, smg | --upstream-ca-file
    --ca-cert-paths V...
smg | --engine-metrics-interval-secs
    --load-monitor-interval V
smg | --upstream-keepalive-secs
    --upstream-pool-idle-timeout-secs V
smg | --keepalive-secs
    --idle-connection-timeout-secs V
smg | --read-timeout-secs
    --header-read-timeout-secs V
smg | --tenant-header
    --tenant-header-name V
smg | --session-headers
    --routing-key-headers V...
"""
"""The text after the bar is our flag, or with ``=`` an option of policies."""

ACCEPTED = """
sglang-router, smg, vllm-router | a failed attempt goes to another worker at once; --retry-budget-ratio
| bounds how many do
    --retry-initial-backoff-ms V --retry-max-backoff-ms V --retry-backoff-multiplier V
    --retry-jitter-factor V
sglang-router, smg, vllm-router | the tree evicts as it grows
    --eviction-interval-secs V
sglang-router, smg, vllm-router | --tree-blocks-max bounds the tree, in KV blocks
    --max-tree-size V
sglang-router, smg, vllm-router | the gateway starts without workers, and each serves after its first
| good health check
    --worker-startup-check-interval V
smg | a worker serves after its first good health check
    --worker-startup-delay V
sglang-router, smg | workers are probed all the same, else one that failed could not come back
    --disable-health-check
sglang-router, smg, vllm-router | several models are always served: those that the workers list
    --enable-igw
sglang-router, smg, vllm-router | --requests-per-client-per-s limits rates, by address
    --rate-limit-tokens-per-second V
sglang-router, smg, vllm-router | logs are JSON lines on standard error
    --log-dir V
smg | logs are JSON lines always
    --log-json
sglang-router, smg, vllm-router | no answer allows another origin, so browsers cannot ask from one
    --cors-allowed-origins V...
sglang-router, smg | length buckets have fixed bounds, --length-buckets; cacheway plan --buckets finds
| them
    --bucket-adjust-interval-secs V
sglang-router, smg | the default policy finds a session's cache by its content, and assigns no keys
    --max-idle-secs V --assignment-mode V
smg | a session's name is a hint here, always on: docs/sessions.md; --policy consistent_hash goes by it
    --sticky-key-idle-secs V --routing-key-override --sticky-sessions
sglang-router, vllm-router | pairs of prefill and decode workers need no other process here
    --mini-lb
sglang-router, smg | bodies pass as they came: engines apply templates, tokenise and parse
    --model-path V --tokenizer-path V --chat-template V --tokenizer-cache-enable-l0
    --tokenizer-cache-l0-max-entries V --tokenizer-cache-enable-l1 --tokenizer-cache-l1-max-memory V
    --reasoning-parser V --tool-call-parser V
smg | bodies pass as they came: engines apply templates, tokenise and parse
    --model V --disable-tokenizer-autoload --tokenizer-cache-l0-max-memory V --parser V
sglang-router, smg | tools are called by clients and engines, not here
    --mcp-config-path V
sglang-router, smg | no conversation is stored here; --redis-url is the log that replicas share
    --history-backend V --oracle-wallet-path V --oracle-tns-alias V --oracle-connect-descriptor V
    --oracle-username V --oracle-password V --oracle-pool-min V --oracle-pool-max V
    --oracle-pool-timeout-secs V --postgres-db-url V --postgres-pool-max V --redis-pool-max V
    --redis-retention-days V
smg | no conversation is stored here; --redis-url is the log that replicas share
    --history-memory-max-responses V --history-memory-max-items V --history-memory-retention-secs V
    --oracle-external-auth --postgres-op-timeout-secs V --redis-op-timeout-secs V --schema-config V
    --storage-hook-wasm-path V --storage-context-headers V...
smg | background responses are the engine's to run
    --max-background-responses V
sglang-router, smg | buckets are fixed, so that dashboards and alerts fit
    --prometheus-duration-buckets V...
sglang-router, smg | changes are always audited: GET /audit
    --control-plane-audit-enabled
smg | replicas find each other through Redis: give all of them the same --redis-url
    --enable-mesh --mesh-server-name V --mesh-host V --mesh-advertise-host V --mesh-port V
    --mesh-peer-urls V... --router-selector V...
smg | encode workers named with --encode are used without a switch, by the hash of the first medium
    --epd-disaggregation --encode-policy V
smg | media pass to engines as they came, and the gateway fetches none
    --multimodal-tensor-transport V --multimodal-shm-min-bytes V --multimodal-max-inflight-bytes V
    --mm-per-request-image-limit V --mm-processing V --mm-pixel-cache-mb V --mm-pixel-rdma
    --mm-allowed-media-domains V --mm-allow-private-media-hosts --rdma-listen-ip V --rdma-slot-ttl-s V
    --log-mm-timing
smg | the policies here have options of their own, --policy-options
    --kv-index V --block-size V --cache-boundaries V --cache-index V --cache-ttl-secs V
    --selection-policy V --selection-accounting-ttl-ms V --overlap-decay V --selection-temperature V
    --balance-token-usage-threshold V --overload-token-usage-threshold V --prefix-token-count V
    --prefix-hash-balance-abs-threshold V --least-load-kv-pressure-weight V
    --least-load-default-throughput V --least-load-mean-prefill-tokens V
    --least-load-max-waiting-requests V --power-of-two-load-metric V
smg | a worker gets what it has room for, and the rest waits here: --backlog-target-secs,
| --kv-usage-max, --queue-size
    --worker-overload-waiting-requests V --worker-overload-token-usage V --worker-overload-protection
    --disable-worker-overload-protection --worker-overload-shed --disable-load-monitoring
    --pd-admission-wait-secs V --prefill-max-inflight-requests-per-worker V --prefill-queue-size V
    --prefill-queue-timeout-secs V
smg | circuits and health checks take out workers that fail or are silent
    --worker-stall-secs V --worker-wedge-secs V --worker-stale-secs V
smg | --slow-start-secs says how a worker that returns grows to its share
    --worker-warmup-secs V --worker-warmup-share V --worker-warmup-blocks V --worker-warmup-thin-ratio V
    --worker-warmup-divert-every V
smg | unhealthy workers stay listed, are probed on, and return by themselves
    --remove-unhealthy-workers --no-remove-unhealthy-workers --worker-auto-recovery
    --no-worker-auto-recovery
smg | --held-bytes-max and --read-timeout-secs bound bodies that arrive
    --max-buffered-request-bytes V --stream-body-stall-timeout-secs V
smg | streams carry what engines send, and nothing else
    --sse-keepalive-secs V
smg | workers are asked over HTTP/1.1 with kept connections
    --upstream-http2
smg | each request gets the rank that --dp-aware finds best
    --dp-minimum-tokens-scheduler
smg | engines take such calls themselves
    --enable-rl --rl-control-timeout-secs V --rl-fanout-concurrency V
smg | changes of the fleet need no queue of jobs
    --job-queue-capacity V --job-queue-concurrency V
smg | --service-discovery-resync-secs lists pods beside the watch
    --discovery-check-interval-secs V
smg | the label handover says how a pod hands over
    --kv-connector-annotation V --kv-engine-id-annotation V
smg | models are those that the workers list
    --model-id-from V
smg | workers are asked over HTTP
    --zmq-engine-count V
smg | no module runs in the gateway
    --enable-wasm
smg | there is no such allocator to profile
    --jemalloc-prof-dir V
smg | classes are always there: --queue-classes, and the header x-priority
    --priority-scheduler-enabled --priority-scheduler-default-max-class V --priority-scheduler-config V
    --priority-scheduler-tenant-metric-top-n V
smg | probes are answered on --port, and on the admin port
    --health-check-port V
vllm-router | the default policy prices caches in seconds, those below the device too
    --router-temperature V --kv-penalty-host V --kv-penalty-external V --kv-penalty-disk V
    --kv-aware-session-affinity-ttl-secs V
vllm-router | --kv-events auto follows the engines that say where they publish, or the label kv_events
    --kv-event-source V --kv-event-replay-source V --kv-event-block-size V --kv-event-model V
    --pd-kv-events V
vllm-router | engines tell their ranks; else write dp_size=N after a worker's URL
    --intra-node-data-parallel-size V
vllm-router | programs are not scheduled as such; the default policy keeps a session where its cache is
    --enable-program-scheduling --program-scheduling-config-json V
"""

REFUSED = """
sglang-router, smg | make tokens for administrators with cacheway keys admin, and write
| --admin-tokens-file FILE
    --control-plane-api-keys V...
sglang-router, smg | put an authenticating proxy in front of the admin port, or write
| --admin-tokens-file FILE
    --jwt-issuer V --jwt-audience V --jwt-jwks-uri V --jwt-role-mapping V...
smg | make keys of tenants with cacheway keys, and write --tenant-keys-file FILE
    --tenant-api-key V
smg | limits of tenants stand in the keys file; write --tenant-keys-file FILE
    --tenant-rate-limit-enabled --tenant-rate-limit-config V
smg | replicas speak TLS through Redis; write --redis-url rediss://HOST:PORT
    --mesh-tls-ca-cert V --mesh-tls-cert V --mesh-tls-key V
vllm-router | no module judges requests here; put such a check in front of the gateway
    --wasm-middleware V --wasm-middleware-sha256 V --wasm-middleware-route V
vllm-router | workers cannot register there; name them with --prefill and --decode, or POST /workers
    --vllm-discovery-address V
smg | workers are not read from a manifest; name them with --worker-urls, in --config FILE, or POST
| /workers
    --discovery-file V
"""

SPECIAL: tuple[PeerFlag, ...] = (
    PeerFlag(
        "--backend",
        (SGLANG, SMG),
        "one",
        "accepted",
        "engines name themselves",
        only=("sglang", "vllm", "tokenspeed"),
    ),
    PeerFlag(
        "--discovery-provider",
        (SMG,),
        "one",
        "taken",
        "--service-discovery",
        ours="--service-discovery",
        only=("kubernetes",),
        value="true",
    ),
    PeerFlag(
        "--trust-tenant-header",
        (SMG,),
        "none",
        "taken",
        "--tenant-header x-smg-tenant-id",
        ours="--tenant-header",
        value="x-smg-tenant-id",
    ),
    PeerFlag(
        "--cb-window-duration-secs",
        (SGLANG, SMG, VLLM),
        "one",
        "taken",
        "--ejected-ratio-max 1: their circuits eject every worker that fails; failures in a row count here",
        ours="--ejected-ratio-max",
        value="1",
    ),
)
"""Flags whose values decide, or that stand for a value."""
