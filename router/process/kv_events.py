"""From settings to `KvEvents`."""

import importlib.util
from collections.abc import Callable

import httpx

from router.destinations import Destinations
from router.errors import SettingsError
from router.fleet import Core, normal_url, worker_id_of
from router.fleet.kv_events import FollowingRules, KvEvents
from router.settings import Settings


def check_kv_events(settings: Settings) -> None:
    """Check before the start that events can be received; raise SettingsError if ZeroMQ is missing."""
    if settings.fleet.kv_events != "off" and importlib.util.find_spec("zmq") is None:
        raise SettingsError(
            ["fleet.kv_events: ZeroMQ is not installed; install Cacheway with the extra kv-events"]
        )


def make_kv_events(
    settings: Settings,
    core: Core,
    client: httpx.AsyncClient,
    *,
    root_of: Callable[[str, str], int],
    destinations: Destinations,
) -> KvEvents:
    """Build the followers of KV events; ``root_of`` returns the root for a model's name and a salt."""
    models = settings.placement.models
    with_ids = {name for name, model in models.items() if model.tokenizer}

    def identifies(model: str) -> bool:
        return (model if model in models else "*") in with_ids

    return KvEvents(
        core,
        client,
        destinations,
        FollowingRules(
            on=settings.fleet.kv_events != "off",
            named=frozenset(worker_id_of(normal_url(worker.url)) for worker in settings.fleet.workers),
            timeout_s=settings.fleet.health_check_timeout_s,
        ),
        root_of=root_of,
        identifies=identifies,
    )
