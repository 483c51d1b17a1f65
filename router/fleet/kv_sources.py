"""Endpoints where a worker's engine publishes the stores and removals of its KV cache.

    label kv_events [and kv_replay]     set by an operator; bind:ENDPOINT listens for the engine
    a page of the engine                read by `router.engines`

An engine whose endpoint has no wildcard connects (``_is_bind_endpoint`` in vLLM's distributed/kv_events.py).
Endpoints that are not from the settings are judged like URLs of workers (`router.destinations`); files
(``ipc:``) and listening count as loopback.
"""

from collections.abc import Callable, Mapping

from radix import parsed_whole
from router.engines.sources import ANY_HOST, IPC, TCP, Source, shifted
from router.errors import ClientError

EVENTS_LABEL, REPLAY_LABEL = "kv_events", "kv_replay"

_BIND = "bind:"


def labelled(labels: Mapping[str, str], ranks: int) -> tuple[Source, ...]:
    """Sources in a worker's labels, one per data-parallel rank; raise `ClientError` if malformed."""
    events = labels.get(EVENTS_LABEL, "")
    if not events:
        return ()
    replay = labels.get(REPLAY_LABEL, "")
    listens = events.startswith(_BIND)
    endpoint = _checked(EVENTS_LABEL, events.removeprefix(_BIND))
    if not listens:
        _checked_host(EVENTS_LABEL, endpoint)
    if replay:
        _checked_host(REPLAY_LABEL, _checked(REPLAY_LABEL, replay))
    if ranks > 1 and not endpoint.startswith("tcp:"):
        raise _invalid(EVENTS_LABEL, events, "of a worker with several data-parallel ranks it must be tcp")
    return tuple(
        Source(rank, shifted(endpoint, rank), shifted(replay, rank) or None, "", listens)
        for rank in range(ranks)
    )


def check_labels(labels: Mapping[str, str], check_host: Callable[[str], None]) -> None:
    """Judge the endpoints of labels that are not from the settings; see `labelled` and `judge`."""
    for source in labelled(labels, 1):
        judge(source, check_host)


def judge(source: Source, check_host: Callable[[str], None]) -> None:
    """Raise `ClientError` if the gateway may not connect to a source, or listen there."""
    if source.listens:
        check_host("127.0.0.1")
    for endpoint in (source.endpoint, source.replay):
        if endpoint is None or (source.listens and endpoint == source.endpoint):
            continue
        host = host_of(endpoint)
        check_host("127.0.0.1" if host is None else host)


def host_of(endpoint: str) -> str | None:
    """Host of an endpoint; None for a file."""
    found = TCP.fullmatch(endpoint)
    return None if found is None else found[1].strip("[]")


def label_hosts(labels: Mapping[str, str]) -> set[str]:
    """Hosts that a worker's labels name for its events."""
    texts = (labels.get(label, "").removeprefix(_BIND) for label in (EVENTS_LABEL, REPLAY_LABEL))
    return {host for text in texts if (host := host_of(text)) is not None}


def port_of(endpoint: str) -> int:
    """Port of a tcp endpoint."""
    return int(endpoint.rpartition(":")[2])


def _checked(label: str, endpoint: str) -> str:
    found = TCP.fullmatch(endpoint)
    if (found is None or not parsed_whole(found[2], 65535)) and not IPC.fullmatch(endpoint):
        raise _invalid(label, endpoint, "write tcp://HOST:PORT or ipc://PATH")
    return endpoint


def _checked_host(label: str, endpoint: str) -> None:
    if host_of(endpoint) in ANY_HOST:
        raise _invalid(
            label, endpoint, f"it stands for every address; to listen at all of them write {_BIND}{endpoint}"
        )


def _invalid(label: str, text: str, why: str) -> ClientError:
    return ClientError(f"label {label}={text[:200]!r}: {why}", code="invalid_kv_events", param="labels")
