"""One worker as this replica sees it: health, models, connections."""

from dataclasses import dataclass
from enum import StrEnum

from policies import CONVERTIBLE_LABEL, HAND_OVERS, HANDOVER_LABEL, Breaker, Worker, setting
from router.engines import DIALECTS
from router.fleet.engine_info import ServedModel
from router.fleet.model_names import UnlistedModels
from router.proxy import WorkerPool


class Health(StrEnum):
    """Health by probes."""

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True)
class HealthRules:
    """Rules for probing workers, finding one for a model, and the start of a returning one."""

    health_check_interval_s: float = setting(
        5.0,
        "Time between two health checks of a worker, in seconds. Shorter than the peers' 60 s, so that a "
        "dead worker is known within 15 s even without traffic.",
        gt=0,
        live=True,
    )
    health_check_timeout_s: float = setting(
        5.0,
        "Longest time a health check may take, in seconds. The default is the peers'; a busy engine "
        "answers late.",
        gt=0,
        live=True,
    )
    health_check_endpoint: str = setting(
        "/health",
        "Path of the health check. SGLang, vLLM and the emulator serve the default.",
        allowed="a path that starts with /",
        pattern=r"^/\S*$",
        live=True,
    )
    health_failure_threshold: int = setting(
        3,
        "Failed health checks in a row after which a worker is unhealthy. The default is the peers'.",
        ge=1,
        live=True,
    )
    health_success_threshold: int = setting(
        2,
        "Successful health checks in a row after which an unhealthy worker is healthy again. The default "
        "is the peers'. A worker seen for the first time needs one.",
        ge=1,
        live=True,
    )
    worker_startup_timeout_s: float = setting(
        60.0,
        "Longest time that POST /add_worker waits until the new worker answers its health check, in seconds; "
        "after it the worker is taken away again, and the answer says so. The peers wait 600 s and more, "
        "longer than most clients do. POST /workers does not wait.",
        gt=0,
        le=3600,
        live=True,
    )
    unlisted_models: UnlistedModels = setting(
        "single",
        "Handling of a request without a model, or with one that no worker lists: single sends it on if "
        "the fleet serves one model, as sglang-router and vllm-router do; any sends it to any worker; "
        "refuse, and single in a fleet of several models, answers 404 (400 without a model). BASE:ADAPTER "
        "goes to workers that list BASE in any case.",
        live=True,
    )
    dp_aware: bool = setting(
        True,  # noqa: FBT003 - a default
        "Choose the data-parallel rank of each request, too, where an engine has several and can be told one "
        "(SGLang 0.5.7 and later, vLLM): each rank has a KV cache and a queue of its own "
        "(docs/data-parallel.md). Without it the engine chooses, and looks at no cache. Must be equal in all "
        "replicas of a namespace.",
    )
    slow_start_s: float = setting(
        10.0,
        "Time over which a worker that returns (healthy again, no longer ejected, or restarted) grows from a "
        "tenth to its full share of the requests, in seconds; 0 gives it the full share at once. The default "
        "is long enough to see a worker that is not well after all, at a tenth of the price.",
        ge=0,
        live=True,
    )

    @property
    def assumed_handover(self) -> str:
        """Hand-over protocol of workers if neither a label nor the engine names one; empty for none."""
        return ""


@dataclass(slots=True)
class LocalWorker:
    """One worker as seen from this replica.

    Attributes:
        places: Rows that its requests go to: its data-parallel ranks, or itself.
        breaker: This replica's part in its circuit; None if circuits are turned off.
        detail: Outcome of the last probe.
        models: Models that it serves; None before it reported.
        engine: Name of its dialect (`router.engines`), or empty.
        running_max: Most requests that its engine runs at a time; 0 if unknown.
        told_capacity_tokens: KV capacity that its engine told last; 0 if unknown.
        step_tokens: Most tokens that one step prefills, if later requests find its blocks only when it is
            over (SGLang); 0 if they find them before, or it is unknown.
        advertised_port: Bootstrap port of its engine; 0 if unknown.
        engine_role: Role that its engine was started for; empty if unknown.
        failures: Failed probes in a row; successes likewise.
        suspected_us: Log time of the last sign of a restart that no probe has cleared up, or 0.
        heard_us: Log time at which another process was found that a sibling is to report, or 0.
        refused_us: Log time at which the connection was refused, until it is back, or 0.
        removed: No longer in the fleet; its last requests may still end.
        assumed_handover: Hand-over protocol while neither label nor engine says one; empty for none.
        as_written: True if its requests name no rank, and its role changes none.
    """

    worker: Worker
    pool: WorkerPool
    breaker: Breaker | None
    health: Health = Health.STARTING
    detail: str = "not probed yet"
    models: tuple[ServedModel, ...] | None = None
    engine: str = ""
    running_max: int = 0
    told_capacity_tokens: int = 0
    step_tokens: int = 0
    advertised_port: int = 0
    engine_role: str = ""
    failures: int = 0
    successes: int = 0
    probes: int = 0
    suspected_us: int = 0
    heard_us: int = 0
    refused_us: int = 0
    removed: bool = False
    assumed_handover: str = ""
    places: tuple[Worker, ...] = ()
    as_written: bool = True

    def __post_init__(self) -> None:
        self.places = self.places or (self.worker,)

    @property
    def slots(self) -> list[int]:
        """Slots of its places."""
        return [place.slot for place in self.places]

    @property
    def state(self) -> str:
        """One word for people and metrics."""
        return "draining" if self.worker.draining else self.health.value

    @property
    def protocol(self) -> str:
        """Hand-over protocol by its label, else its engine, else as assumed; empty if unknown."""
        label = self.worker.labels.get(HANDOVER_LABEL, "")
        if label in HAND_OVERS:
            return label
        return DIALECTS[self.engine].handover if self.engine in DIALECTS else self.assumed_handover

    @property
    def misnamed(self) -> str:
        """Problem of an engine that was started for another role; empty for none.

        SGLang's engines wait minutes for a wrong partner, and may stop at a request without one. The engine
        of a convertible worker is asked when it turns.
        """
        role = self.worker.role
        if self.engine_role in ("", role) or role == "encode":
            return ""
        if self.worker.labels.get(CONVERTIBLE_LABEL) == "true":
            return ""
        mode = "null" if self.engine_role == "plain" else self.engine_role
        return f"its engine was started with --disaggregation-mode {mode}, but its role is {role}"

    def serves(self, model: str | None) -> bool:
        """Return True if it serves a model; one without a list of models may serve any."""
        return model is None or self.models is None or any(served.model_id == model for served in self.models)

    def context_tokens_max(self, model: str | None) -> int:
        """Longest prompt and answer that it can hold for a model; 0 if unknown."""
        longest_tokens, capacity_tokens = self.longest_tokens(model), self.places[0].capacity_tokens
        limits = [tokens for tokens in (longest_tokens, capacity_tokens) if tokens]
        return min(limits, default=0)

    def longest_tokens(self, model: str | None) -> int:
        """Longest prompt and answer that its engine takes for a model (``max_model_len``); 0 if unknown."""
        lengths = [
            served.max_model_len for served in self.models or () if model is None or served.model_id == model
        ]
        return min((tokens for tokens in lengths if tokens), default=0)
