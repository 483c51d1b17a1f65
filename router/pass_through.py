"""Further paths of engines that an operator lets clients reach (`upstream.pass_through`).

    /v1/videos       this path
    /omni/*          every path below

Refused are paths of the gateway's own routes, and names by which engines are administered: a client that
reaches one could flush caches, load weights or stop an engine for all. A name counts at any place of a path,
and again when a request comes, so that ``/v1/*`` leads to none.
"""

import re

OWN_ROOTS = frozenset(
    (
        *("add_worker", "admin", "audit", "buckets", "console", "decisions", "discovery", "engine_metrics"),
        *("events", "explain", "finish_session", "flush_cache", "get_loads", "get_model_info"),
        *("get_server_info", "health"),
        *("health_generate", "kv_events", "links", "list_encoder_urls", "list_workers", "liveness"),
        *("metrics", "offload", "openapi.json", "ping", "policies", "queue", "readiness"),
        *("register_encoder_url", "remove_worker", "replicas", "reset_prefix_cache", "roles", "server_info"),
        *("settings", "shadow", "start_profile", "stop_profile", "tenants", "tree", "unregister_encoder_url"),
        "workers",
    )
)
"""First parts of the paths that the gateway answers itself; a test compares them with its routes."""

ADMINISTERING = frozenset(
    (
        # vLLM 0.32: serve/, rl/online/api_router.py
        *("abort_requests", "apply", "collective_rpc", "fault_tolerance", "finish_weight_update"),
        *("get_world_size", "init_weight_transfer_engine", "is_paused", "is_sleeping", "load_lora_adapter"),
        *("pause", "release_kv_cache_memory", "reset_encoder_cache", "reset_mm_cache", "reset_prefix_cache"),
        *("resume", "scale_elastic_ep", "is_scaling_elastic_ep", "shutdown_weight_transfer_engine", "sleep"),
        *("start_draft_weight_update", "start_profile", "start_weight_update", "stop_profile"),
        *("unload_lora_adapter", "update_weight_version", "update_weights", "wake_up", "weight_checker"),
        *("weight_info", "kv_event_sources", "load", "server_info"),
        # SGLang: srt/entrypoints/http_server.py
        *("abort_request", "clear_hicache_storage_backend", "close_session", "configure_logging"),
        *("continue_generation", "destroy_weights_update_group", "dump_expert_distribution_record"),
        *("flush_cache", "freeze_gc", "get_internal_state", "get_load", "get_loads", "get_server_info"),
        *("get_weights_by_name", "init_weights_send_group_for_remote_instance", "init_weights_update_group"),
        *("open_session", "pause_generation", "pd_role_switch", "release_memory_occupation"),
        *(
            "resume_memory_occupation",
            "send_weights_to_remote_instance",
            "set_internal_state",
            "set_trace_level",
        ),
        *("slow_down", "start_expert_distribution_record", "stop_expert_distribution_record"),
        *("update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_ipc"),
        *("update_weights_from_tensor", "attach_hicache_storage_backend", "detach_hicache_storage_backend"),
        # both
        *("docs", "openapi.json", "redoc", "metrics", "health", "shutdown"),
    )
)
"""Names of paths by which engines are administered or described to operators."""

_PATH = re.compile(r"(?:/[A-Za-z0-9._~-]+)+(?:/\*)?")


def administers(path: str) -> bool:
    """Return True if a part of a path, in any spelling, administers an engine."""
    return any(part.lower() in ADMINISTERING for part in re.split(r"[/;]", path))


def passed_path(path: str) -> str:
    """Check one path of the setting; raise ValueError if clients must not reach it."""
    if not _PATH.fullmatch(path) or ".." in path:
        raise ValueError(f"{path!r} is no path; write /v1/videos, or /omni/* for all below")
    if path.split("/")[1] in OWN_ROOTS or path.startswith("/v1/models"):
        raise ValueError(f"{path} is the gateway's own")
    if administers(path):
        raise ValueError(f"{path} administers an engine; clients never reach it")
    return path


class PassedPaths:
    """The paths of one value of the setting, ready to be looked up."""

    __slots__ = ("_below", "_exact")

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._exact = frozenset(path.encode() for path in paths if not path.endswith("*"))
        self._below = tuple(path[:-1].encode() for path in paths if path.endswith("*"))

    def __contains__(self, path: object) -> bool:
        """Return True if a request's raw path is passed on."""
        if not isinstance(path, bytes):
            return False
        if path in self._exact:
            return True
        if not self._below or not path.startswith(self._below):
            return False
        # Engines decode escapes and resolve dots; a path with either may mean another one there.
        text = path.decode("latin-1")
        plain = _PATH.fullmatch(text) is not None and "*" not in text and ".." not in text
        return plain and not administers(text) and not text.startswith("/v1/models")
