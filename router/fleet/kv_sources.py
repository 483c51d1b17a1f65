"""Where a worker's engine publishes what its KV cache stores and removes.

    label kv_events [and kv_replay]     as somebody says; bind:ENDPOINT listens for the engine
    GET /kv_event_sources               vLLM: {rank: {endpoint, replay_endpoint, topic, publisher}}
    GET /server_info, /get_server_info  SGLang: kv_events {endpoint_host, endpoint_port_base, topic, dp_size}
                                        and kv_events_config {replay_endpoint}

Data-parallel rank r publishes at port + r (``offset_endpoint_port`` in vLLM's distributed/kv_events.py, the
same in SGLang). ``*`` and the addresses that mean any become the worker's host. An engine whose endpoint has
no wildcard connects (``_is_bind_endpoint`` there), and then only a label can say that the gateway listens.

Where the gateway connects to is judged as for URLs of workers (`router.destinations`): what is in the
settings is the operator's will, what others say is not. Files (``ipc:``) and listening concern this machine,
so ``fleet.disable_loopback_workers`` refuses both to others.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from radix import parsed_whole
from router.errors import ClientError

EVENTS_LABEL, REPLAY_LABEL = "kv_events", "kv_replay"

RANKS_MAX = 1024
"""No engine has more data-parallel ranks."""

_BIND = "bind:"
_TCP = re.compile(r"tcp://(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
_IPC = re.compile(r"ipc://[!-~]{1,100}")
_ANY_HOST = frozenset(("*", "0.0.0.0", "[::]", "::"))  # noqa: S104 - what engines write


@dataclass(frozen=True, slots=True)
class Source:
    """One publisher.

    Attributes:
        rank: Data-parallel rank.
        endpoint: ZeroMQ endpoint, ``tcp://HOST:PORT`` or ``ipc://PATH``.
        replay: Where old batches can be asked for; None for nowhere.
        topic: First frame of its messages.
        listens: Whether the gateway listens at the endpoint, and the engine connects.
    """

    rank: int
    endpoint: str
    replay: str | None = None
    topic: str = ""
    listens: bool = False


def labelled(labels: Mapping[str, str], ranks: int) -> tuple[Source, ...]:
    """The sources that a worker's labels name; none without a label.

    Args:
        labels: Of the worker.
        ranks: How many data-parallel ranks it has.

    Raises:
        ClientError: A label is no endpoint.
    """
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
        Source(rank, _shifted(endpoint, rank), _shifted(replay, rank) or None, "", listens)
        for rank in range(ranks)
    )


def check_labels(labels: Mapping[str, str], check_host: Callable[[str], None]) -> None:
    """Judge the endpoints that labels name which are not from the settings.

    Raises:
        ClientError: A label is no endpoint, or the gateway does not connect there, or listen.
    """
    for source in labelled(labels, 1):
        judge(source, check_host)


def judge(source: Source, check_host: Callable[[str], None]) -> None:
    """Judge where a source is.

    Raises:
        ClientError: The gateway does not connect there, or listen.
    """
    if source.listens:
        check_host("127.0.0.1")
    for endpoint in (source.endpoint, source.replay):
        if endpoint is None or (source.listens and endpoint == source.endpoint):
            continue
        host = host_of(endpoint)
        check_host("127.0.0.1" if host is None else host)


def host_of(endpoint: str) -> str | None:
    """The host of an endpoint; None of a file."""
    found = _TCP.fullmatch(endpoint)
    return None if found is None else found[1].strip("[]")


def label_hosts(labels: Mapping[str, str]) -> set[str]:
    """The hosts that a worker's labels name for its events."""
    texts = (labels.get(label, "").removeprefix(_BIND) for label in (EVENTS_LABEL, REPLAY_LABEL))
    return {host for text in texts if (host := host_of(text)) is not None}


def port_of(endpoint: str) -> int:
    """The port of a tcp endpoint."""
    return int(endpoint.rpartition(":")[2])


def vllm_sources(answer: bytes | None, url: str) -> tuple[Source, ...]:
    """Read vLLM's ``/kv_event_sources``; none if it says nothing that can be followed.

    Args:
        answer: The JSON.
        url: Base URL of the worker.
    """
    entries = _decoded(answer, dict[str, _VllmSource])
    found = []
    for name, entry in sorted((entries or {}).items(), key=lambda each: each[0].rjust(5)):
        endpoint = _at_worker(entry.endpoint, url)
        rank = parsed_whole(name, RANKS_MAX - 1)
        if rank is None or entry.publisher != "zmq" or endpoint is None:
            continue
        found.append(Source(rank, endpoint, _at_worker(entry.replay_endpoint, url), entry.topic))
    return tuple(found)


def sglang_sources(answer: bytes | None, url: str) -> tuple[Source, ...]:
    """Read SGLang's ``/server_info``; as `vllm_sources`."""
    info = _decoded(answer, _SglangInfo)
    if info is None or info.kv_events is None or info.kv_events.publisher != "zmq":
        return ()
    told, text = info.kv_events, info.kv_events_config
    config = _decoded(text.encode(), _SglangConfig) if isinstance(text, str) else None
    replay = None if config is None else _at_worker(config.replay_endpoint, url)
    host = told.endpoint_host
    endpoint = _at_worker(
        f"tcp://{f'[{host}]' if ':' in host.strip('[]') else host}:{told.endpoint_port_base}", url
    )
    if endpoint is None or not 0 < told.dp_size <= RANKS_MAX:
        return ()
    return tuple(
        Source(rank, _shifted(endpoint, rank), _shifted(replay or "", rank) or None, told.topic)
        for rank in range(told.dp_size)
    )


class _VllmSource(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    publisher: str = "zmq"
    topic: str = ""


class _SglangEvents(msgspec.Struct):
    endpoint_host: str
    endpoint_port_base: int
    publisher: str = "zmq"
    topic: str = ""
    dp_size: int = 1


class _SglangInfo(msgspec.Struct):
    kv_events: _SglangEvents | None = None
    kv_events_config: Any = None


class _SglangConfig(msgspec.Struct):
    replay_endpoint: str | None = None


def _decoded(answer: bytes | None, kind: Any) -> Any:
    try:
        return None if not answer else msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _at_worker(endpoint: str | None, url: str) -> str | None:
    """What an engine calls its endpoint, as seen from here; None if it is none that can be connected to."""
    if endpoint is None or _IPC.fullmatch(endpoint):
        return endpoint
    head, colon, port = endpoint.rpartition(":")
    if head.removeprefix("tcp://") in _ANY_HOST:
        host = urlsplit(url).hostname or ""
        head = f"tcp://[{host}]" if ":" in host else f"tcp://{host}"
    found = _TCP.fullmatch(head + colon + port)
    return found[0] if found is not None and parsed_whole(found[2], 65535) else None


def _checked(label: str, endpoint: str) -> str:
    found = _TCP.fullmatch(endpoint)
    if (found is None or not parsed_whole(found[2], 65535)) and not _IPC.fullmatch(endpoint):
        raise _invalid(label, endpoint, "write tcp://HOST:PORT or ipc://PATH")
    return endpoint


def _checked_host(label: str, endpoint: str) -> None:
    if host_of(endpoint) in _ANY_HOST:
        raise _invalid(
            label, endpoint, f"nobody is at every address; to listen there write {_BIND}{endpoint}"
        )


def _shifted(endpoint: str, rank: int) -> str:
    if not rank or not endpoint:
        return endpoint
    if not endpoint.startswith("tcp:"):
        return f"{endpoint}_dp{rank}"
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + rank}"


def _invalid(label: str, text: str, why: str) -> ClientError:
    return ClientError(f"label {label}={text[:200]!r}: {why}", code="invalid_kv_events", param="labels")
