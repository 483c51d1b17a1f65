"""``--kv-events-config``: the endpoints of an engine's KV events.

The JSON is that of both engines (vLLM's config/kv_events.py, SGLang's disaggregation/kv_events.py). vLLM
publishes only with ``enable_kv_cache_events``, SGLang with ``"publisher": "zmq"``; either is enough here.
Rank r, and the r-th emulated engine of a process, use the configured port + r; the system chooses for port 0.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import msgspec

_ENDPOINT = re.compile(r"tcp://.+:\d+|(ipc|inproc)://.+")


@dataclass(frozen=True, slots=True)
class KvEventsSettings:
    """One publisher.

    Attributes:
        endpoint: Of batches. Bound if it has ``*`` or ``::`` or is ``ipc`` or ``inproc``, else connected:
            then the subscriber binds.
        replay_endpoint: Of replays, always bound; None for none.
        buffer_steps: Batches that can be replayed.
        hwm: Batches that wait for a slow subscriber before it loses some.
        topic: First frame of every message.
    """

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    topic: str = ""

    @classmethod
    def parse(cls, text: str) -> "KvEventsSettings | None":
        """Read the engines' JSON; None if it turns events off, `ValueError` if something is wrong with it."""
        try:
            given = msgspec.json.decode(text, type=_Given)
        except msgspec.MsgspecError as error:
            raise ValueError(f"kv_events_config: {error}") from error
        publisher = given.publisher or ("zmq" if given.enable_kv_cache_events else "null")
        if publisher not in ("zmq", "null"):
            raise ValueError(f"kv_events_config: publisher must be zmq or null, not {publisher}")
        if publisher == "null" or given.enable_kv_cache_events is False:
            return None
        for endpoint in (given.endpoint, given.replay_endpoint):
            if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
                raise ValueError(f"kv_events_config: {endpoint} is no tcp, ipc or inproc endpoint")
        if given.buffer_steps < 0 or given.hwm < 0:
            raise ValueError("kv_events_config: buffer_steps and hwm must be at least 0")
        return cls(given.endpoint, given.replay_endpoint, given.buffer_steps, given.hwm, given.topic)

    def shifted(self, ranks: int) -> "KvEventsSettings":
        """The settings of the publisher ``ranks`` places further on."""
        replay = self.replay_endpoint
        return replace(
            self,
            endpoint=_shifted(self.endpoint, ranks),
            replay_endpoint=None if replay is None else _shifted(replay, ranks),
        )

    def vllm_source(self) -> dict[str, Any]:
        """An entry of vLLM's ``/kv_event_sources``."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": self.buffer_steps,
            "hwm": self.hwm,
            "max_queue_size": self.hwm,
            "topic": self.topic,
        }

    def sglang_source(self, block_tokens: int, ranks: int) -> dict[str, Any] | None:
        """``kv_events`` of SGLang's ``/server_info`` (its pull request 25844); null unless it is TCP."""
        if not self.endpoint.startswith("tcp://"):
            return None
        host, _, port = self.endpoint.removeprefix("tcp://").rpartition(":")
        return {
            "publisher": "zmq",
            "endpoint_host": host,
            "endpoint_port_base": int(port),
            "topic": self.topic,
            "block_size": block_tokens,
            "dp_size": ranks,
        }


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    enable_kv_cache_events: bool | None = None
    publisher: str | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


def _shifted(endpoint: str, ranks: int) -> str:
    if ranks == 0:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{ranks}"
    base, _, port = endpoint.rpartition(":")
    return f"{base}:{int(port) + ranks}" if int(port) else endpoint
