"""Flags of routers with other ancestors: none is taken, each has an answer.

Read in production-stack's ``parser.py``, the options of the endpoint picker that llm-d's scheduler is built
on (gateway-api-inference-extension, ``cmd/epp``), Dynamo 1.6's frontend and router arguments,
``proxy_cli.py`` of LiteLLM 1.110 and AIBrix's ``cmd/plugins``. Flags that mean the same there and here are
not listed.
"""

REFUSED = """
production-stack | write --worker-urls URL URL, by spaces
    --static-backends V
production-stack | write --selector
    --k8s-label-selector V
production-stack | write --service-discovery-namespace
    --k8s-namespace V
production-stack | write --service-discovery-port
    --k8s-port V
production-stack | write --service-discovery-resync-secs: a list beside the watch
    --k8s-watcher-timeout-seconds V
production-stack | leave it out: pods are asked, not Services
    --k8s-service-discovery-type V
production-stack | leave it out: workers list their models
    --static-models V --static-model-labels V --static-model-types V
production-stack | give the engine several names with its --served-model-name
    --static-aliases V
production-stack | leave it out: workers are always probed
    --static-backend-health-checks
production-stack | write --health-check-timeout-secs
    --backend-health-check-timeout-seconds V
production-stack | write --policy: roundrobin is round_robin, session consistent_hash, prefixaware and
| kvaware the default, priority least_load; disaggregated_prefill is --vllm-pd-disaggregation
    --routing-logic V
production-stack | write --session-headers, which names several headers; the session is a hint
    --session-key V
production-stack | leave it out: what is cached is known from placements, usage and --kv-events, without
| LMCache's controller
    --kv-aware-threshold V --lmcache-controller-port V --lmcache-health-check-interval V
    --lmcache-worker-timeout V --tokenizer-name V
production-stack | write --prefill URL, or --prefill-selector
    --prefill-model-labels V
production-stack | write --decode URL, or --decode-selector
    --decode-model-labels V
production-stack | write --engine-metrics-interval-secs
    --engine-stats-interval V
production-stack | leave it out: metrics and the console show it
    --request-stats-window V --log-stats --log-stats-interval V
production-stack | use PATCH /settings and POST /workers: for all replicas, with history and rollback
    --dynamic-config-yaml V --dynamic-config-json V
production-stack | write --enable-trace --otlp-traces-endpoint URL: HTTP, not gRPC
    --otel-endpoint V --otel-secure
production-stack | leave it out: it is cacheway
    --otel-service-name V
production-stack | there is no Sentry here
    --sentry-dsn V --sentry-traces-sample-rate V --sentry-profile-session-sample-rate V
production-stack | there are no files and no batches here
    --enable-batch-api --file-storage-class V --file-storage-path V --batch-processor V
production-stack | bodies are not changed here
    --callbacks V --request-rewriter V --feature-gates V
llm-d | write cacheway picker --pool-name NAME --pool-namespace NAMESPACE
    --poolName V --poolNamespace V
llm-d | leave it out: cacheway picker answers grpc.health.v1 on --grpc-health-port
    --health-checking
llm-d | write --prometheus-port, or scrape /metrics on --port
    --metrics-port V --metrics-endpoint-auth
llm-d | profiles of scorers have no counterpart: write --policy; the default prices cache and load
| together
    --config-file V --config-text V
llm-d | leave it out: engines' metrics are known by their names
    --total-queued-requests-metric V --total-running-requests-metric V
    --kv-cache-usage-percentage-metric V --lora-info-metric V --cache-info-metric V
    --model-server-metrics-port V --model-server-metrics-path V --model-server-metrics-scheme V
    --model-server-metrics-https-insecure-skip-verify
llm-d | write --engine-metrics-interval-secs
    --refresh-metrics-interval V --metrics-staleness-threshold V
llm-d | leave it out: metrics are made when they are scraped
    --refresh-prometheus-metrics-interval V
llm-d | leave it out: all replicas serve, with the same --redis-url
    --ha-enable-leader-election
llm-d | write --enable-trace
    --tracing
llm-d | write --log-level
    --enable-pprof --v V --zap-log-level V --zap-encoder V
Dynamo | write --host
    --http-host V
Dynamo | write --port
    --http-port V
Dynamo | write --policy: kv is the default, round-robin round_robin, random random, power-of-two
| power_of_two, least-loaded least_load
    --router-mode V
Dynamo | leave it out: the default policy prices cache and load in seconds; --policy kv_cost has
| Dynamo's weights as --policy-options
    --kv-overlap-score-weight V --router-kv-overlap-score-weight V --router-kv-overlap-score-credit V
    --router-kv-overlap-score-credit-decay V --router-prefill-load-scale V --router-prefill-load-model V
    --router-host-cache-hit-weight V --router-disk-cache-hit-weight V
    --router-decode-active-request-weight V --shared-cache-multiplier V --shared-cache-type V
Dynamo | write --kv-events auto or off
    --router-kv-events --no-router-kv-events --no-kv-events
Dynamo | write --block-tokens; engines' own blocks need not be equal
    --kv-cache-block-size V --router-block-size V
Dynamo | give all replicas the same --redis-url
    --router-replica-sync --router-snapshot-threshold V --router-reset-states --serve-indexer
    --use-remote-indexer --router-event-threads V --router-min-initial-workers V
Dynamo | leave it out: placements, their ends and usage are always followed, by all replicas
    --router-track-active-blocks --no-router-track-active-blocks --router-track-output-blocks
    --router-track-prefill-tokens --no-router-track-prefill-tokens --track-active-blocks
    --track-output-blocks --router-assume-kv-reuse --no-router-assume-kv-reuse --assume-kv-reuse
    --router-ttl-secs V --router-predicted-ttl-secs V --router-approximate-cache-policy V
    --router-tracking-hash V --router-tracking-key-id V --router-tracking-key-file V
Dynamo | write --backlog-target-secs, --kv-usage-max and --queue-size
    --router-queue-threshold V --router-queue-policy V --router-policy-config V --busy-threshold V
    --active-decode-blocks-threshold V --active-prefill-tokens-threshold V
    --active-prefill-tokens-threshold-frac V --admission-control V
Dynamo | leave it out: the default policy finds a session's cache by its content
    --router-session-affinity-mode V --router-session-affinity-ttl-secs V --enable-session-prefix-index
Dynamo | name the workers with --prefill and --decode; --prefill-policy, --decode-policy and
| --offload-threshold-tokens say the rest
    --enforce-disagg --router-conditional-disagg --router-conditional-disagg-config V
    --router-prefill-policy V --router-decode-policy V
Dynamo | write --policy least_load
    --load-aware
Dynamo | workers are asked over HTTP: name them with --worker-urls, or --service-discovery
    --namespace-prefix V --discovery-backend V --store-kv V --request-plane V --event-plane V
    --response-plane V --endpoint V
Dynamo | leave it out: workers list their models
    --model-name V
Dynamo | leave it out: metrics begin with cacheway_
    --metrics-prefix V
Dynamo | write --retry-max-retries
    --migration-limit V --migration-max-seq-len V
Dynamo | gRPC is not served here
    --kserve-grpc-server --grpc-metrics-port V
Dynamo | leave it out: engines serve what they serve
    --enable-anthropic-api --interactive --dyn-chat-processor V
Dynamo | write --ssl-ca-certs
    --tls-client-ca-cert-path V
LiteLLM | write --workers
    --num_workers V
LiteLLM | write --worker-urls
    --api_base V
LiteLLM | leave it out: workers list their models
    --model V
LiteLLM | give the engine several names with its --served-model-name
    --alias V
LiteLLM | write --ssl-certfile
    --ssl_certfile_path V
LiteLLM | write --ssl-keyfile
    --ssl_keyfile_path V
LiteLLM | there is no choice of ciphers here; put a proxy that has one in front
    --ciphers V
LiteLLM | write --keepalive-secs
    --keepalive_timeout V
LiteLLM | write --request-timeout-secs
    --request_timeout V
LiteLLM | write --max-concurrent-requests
    --limit_concurrency V
LiteLLM | write --header-bytes-max
    --max_request_header_size V
LiteLLM | write --prometheus-port
    --prometheus_metrics_port V
LiteLLM | write --log-level debug
    --debug --detailed_debug --log_config V
LiteLLM | make keys with cacheway keys, and write --tenant-keys-file FILE
    --add_key V
LiteLLM | budgets in tokens stand in the keys file; write --tenant-keys-file FILE
    --max_budget V
LiteLLM | ask GET /health and GET /workers of the running gateway
    --health --test --test_async --num_requests V
LiteLLM | leave it out: the gateway brings its server
    --run_gunicorn --run_hypercorn --run_granian --use_gunicorn --granian_threads V
    --max_requests_before_restart V --max_requests_before_restart_jitter V
    --timeout_worker_healthcheck V --reload
LiteLLM | bodies pass as they came
    --drop_params --add_function_to_prompt --headers V --temperature V --max_tokens V --api_version V
LiteLLM | there is no database here
    --use_prisma_db_push --iam_token_db_auth --use_v2_migration_resolver
LiteLLM | leave it out: it has no counterpart
    --telemetry V --save --setup --local --use_queue
AIBrix | the gateway serves clients itself, over HTTP: --host and --port
    --grpc-bind-address V
AIBrix | write --prometheus-host and --prometheus-port
    --metrics-bind-address V
AIBrix | leave it out: probes are answered on --port
    --health-probe-bind-address V
AIBrix | leave it out: all replicas serve
    --enable-leader-election --leader-elect --leader-election-id V
AIBrix | write --policy: prefix-cache is the default, random random, least-request least_load,
| throughput lmetric
    --routing-strategy V --routing-algorithm V
"""
