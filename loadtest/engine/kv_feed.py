"""The KV events of one engine: a listener and a publisher for each data-parallel rank."""

import asyncio
from collections.abc import Sequence
from typing import Any

from loadtest.engine.kv_encoding import Content, Encoding, SglangEncoding, VllmEncoding, cache_groups
from loadtest.engine.kv_events import KvEvents
from loadtest.engine.kv_settings import KvEventsSettings
from loadtest.engine.profiles import EngineProfile
from loadtest.engine.served import KnownBlocks


class KvFeed:
    """Publisher of the events of an engine's caches; vLLM's are arrays with ``legacy``, as before 2026.

    Attributes:
        listeners: One per rank.
        settings: The same with the endpoints that were bound.

    Raises:
        OSError: An endpoint is taken.
    """

    def __init__(
        self,
        settings: Sequence[KvEventsSettings],
        profile: EngineProfile,
        *,
        vllm: bool,
        legacy: bool = False,
    ) -> None:
        # ZeroMQ is in the extra `loadtest`; an engine without events needs no extra.
        from loadtest.engine.kv_publisher import KvPublisher

        block_tokens = profile.rules.block_tokens
        encoding: Encoding = SglangEncoding(block_tokens)
        if vllm:
            encoding = VllmEncoding(block_tokens, cache_groups(profile.shape), legacy=legacy)
        defer = asyncio.get_running_loop().call_soon
        self._publishers: list[KvPublisher] = []
        self.listeners: list[KvEvents] = []
        try:
            for rank, one in enumerate(settings):
                publisher = KvPublisher(one, replay_topic=vllm)
                self._publishers.append(publisher)
                self.listeners.append(KvEvents(encoding, _content, publisher.publish, defer, rank=rank))
        except OSError:
            self.close()
            raise
        self.settings = [publisher.settings for publisher in self._publishers]

    def vllm_sources(self) -> dict[str, Any]:
        """VLLM's ``/kv_event_sources``: by rank."""
        return {str(rank): settings.vllm_source() for rank, settings in enumerate(self.settings)}

    def sglang_source(self, block_tokens: int) -> dict[str, Any] | None:
        """``kv_events`` of SGLang's ``/server_info``."""
        return self.settings[0].sglang_source(block_tokens, len(self.settings))

    def close(self) -> None:
        """Close all sockets."""
        for publisher in self._publishers:
            publisher.close()


def _content(blocks: bytes) -> Content:
    assert isinstance(blocks, KnownBlocks)
    return blocks.content
