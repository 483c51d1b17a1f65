"""KV cache events as the engines encode them for msgpack.

    SGLang    ["BlockStored", [hash], parent, token ids, block size, lora id, medium]
    vLLM      {"type": "BlockStored", "block_hashes": [...], ..., "group_idx": 0, ...}

* **SGLang** (mem_cache/events.py): one store per block, one removal per tree node, hashes signed, no groups.
  The end of a window alone is silent, so an index made from these events overstates reuse.
* **vLLM** (distributed/kv_events.py, and version 0.32 as observed): one store per span of a step and cache
  group, one removal per block and group, hashes unsigned. A group that keeps only some blocks of the span
  lists fewer hashes than ``token_ids`` has blocks, sometimes none, and names the parent of the span: the
  places of its blocks follow only from the full group's store in the same batch.
* Before 2026 vLLM sent the same fields as tagged arrays (``legacy``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from loadtest.engine.shape import ModelShape
from loadtest.engine.tokens import TOKEN_BYTES, unpack_ids

Event = list[Any] | dict[str, Any]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that are cached together; the place in an engine's list of groups is its number.

    Attributes:
        name: ``full``, ``sliding_window`` or ``linear``.
        kind: vLLM's ``kv_cache_spec_kind``.
        window_tokens: None without a sliding window.
    """

    name: str
    kind: str
    window_tokens: int | None = None


def cache_groups(shape: ModelShape) -> list[CacheGroup]:
    """The groups that vLLM makes of a model's layers.

    A group has as many layers as there are of the rarer kind, so that all pages have one size (vLLM's
    v1/core/kv_cache_utils.py): 10 full and 60 window layers are seven groups. Full layers come first here, as
    for MiMo-V2-Flash; the order differs by model.
    """
    kinds = [
        (shape.full_layers, CacheGroup("full", "full_attention")),
        (shape.window_layers, CacheGroup("sliding_window", "sliding_window", shape.window_tokens)),
        (shape.state_layers, CacheGroup("linear", "mamba")),
    ]
    size = min(layers for layers, _ in kinds if layers)
    return [group for layers, group in kinds for _ in range(-(-layers // size))]


@dataclass(frozen=True, slots=True)
class Content:
    """Sequence of a lease: hashes of (at least the reported) full blocks, packed tokens, identity."""

    blocks: bytes
    tokens: bytes
    salt: str | None = None
    lora_name: str | None = None
    lora_id: int | None = None


@dataclass(slots=True)
class Stored:
    """Blocks of one sequence that became reusable in one step, by the name of the group."""

    content: Content
    spans: dict[str, list[Span]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Removed:
    """Blocks that are gone: packed hashes, the deepest first."""

    blocks: bytes
    group: str
    medium: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """Everything is gone."""


Change = Stored | Removed | Cleared


class Encoding(Protocol):
    """One engine's encoding of changes."""

    def events(self, changes: Iterable[Change]) -> list[Event]:
        """Everything that it tells about these changes, in order."""


class SglangEncoding:
    """SGLang's events for blocks of ``block_tokens``; see the module."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens

    def events(self, changes: Iterable[Change]) -> list[Event]:
        """See `Encoding`."""
        events: list[Event] = []
        for change in changes:
            match change:
                case Stored():
                    for start, end in change.spans.get("full", ()):
                        self._store(change.content, start, end, events)
                case Removed(blocks, "full", medium):
                    events.append(["BlockRemoved", np.frombuffer(blocks, "<i8")[::-1].tolist(), medium])
                case Cleared():
                    events.append(["AllBlocksCleared"])
        return events

    def _store(self, content: Content, start: int, end: int, events: list[Event]) -> None:
        size = self._block_tokens
        hashes = np.frombuffer(content.blocks, "<i8")[max(0, start - 1) : end].tolist()
        parent = hashes.pop(0) if start else None
        ids = unpack_ids(_tokens(content, start, end, size))
        for at, block_hash in enumerate(hashes):
            block_ids = ids[at * size : (at + 1) * size]
            events.append(["BlockStored", [block_hash], parent, block_ids, size, None, "GPU"])
            parent = block_hash


class VllmEncoding:
    """vLLM's events for cache groups; ``legacy`` ones are arrays. See the module."""

    def __init__(self, block_tokens: int, groups: Sequence[CacheGroup], *, legacy: bool = False) -> None:
        self._block_tokens = block_tokens
        self._groups = groups
        self._legacy = legacy

    def events(self, changes: Iterable[Change]) -> list[Event]:
        """See `Encoding`."""
        events: list[dict[str, Any]] = []
        for change in changes:
            match change:
                case Stored():
                    ids: dict[Span, list[int]] = {}
                    for number, group in enumerate(self._groups):
                        self._store(change, number, group, ids, events)
                case Removed(blocks, name, medium):
                    hashes = np.frombuffer(blocks, "<u8").tolist()
                    for number, group in enumerate(self._groups):
                        if group.name == name:
                            events += (_removal(block_hash, medium, number) for block_hash in hashes)
                case Cleared():
                    events.append({"type": "AllBlocksCleared"})
        return [list(event.values()) for event in events] if self._legacy else [*events]

    def _store(
        self,
        change: Stored,
        number: int,
        group: CacheGroup,
        ids: dict[Span, list[int]],
        events: list[dict[str, Any]],
    ) -> None:
        """Report a group's blocks: within the spans of the full group, and each on its own elsewhere.

        ``ids`` has token ids of spans that another group has reported; ``events`` takes the events.
        """
        reported = change.spans.get("full", [])
        stored = change.spans.get(group.name, [])
        if group.name != "full":
            reported = reported + _outside(stored, reported)
        for span in reported:
            start, end = span
            places = sorted({at for first, last in stored for at in range(max(first, start), min(last, end))})
            if span not in ids:
                ids[span] = unpack_ids(_tokens(change.content, start, end, self._block_tokens))
            event = self._event(change.content, start, places, ids[span])
            event["group_idx"] = number
            event["kv_cache_spec_kind"] = group.kind
            if group.window_tokens is not None:
                event["kv_cache_spec_sliding_window"] = group.window_tokens
            events.append(event)

    def _event(self, content: Content, start: int, places: list[int], ids: list[int]) -> dict[str, Any]:
        hashes = np.frombuffer(content.blocks, "<u8")
        event: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": hashes[places].tolist(),
            "parent_block_hash": int(hashes[start - 1]) if start else None,
            "token_ids": ids,
            "block_size": self._block_tokens,
            "lora_id": content.lora_id,
            "medium": "GPU",
            "lora_name": content.lora_name,
        }
        # msgspec leaves out what equals its default, in maps anywhere and in arrays at the end.
        if places or self._legacy:
            event["extra_keys"] = _extra_keys(content, places) if places else None
        return event


def _tokens(content: Content, start: int, end: int, block_tokens: int) -> bytes:
    size = block_tokens * TOKEN_BYTES
    return content.tokens[start * size : end * size]


def _removal(block_hash: int, medium: str, number: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [block_hash], "medium": medium, "group_idx": number}


def _extra_keys(content: Content, places: list[int]) -> list[list[str] | None]:
    """Parts of each block's hash beside its tokens: the adapter, and the salt in the first."""
    lora = [] if content.lora_name is None else [content.lora_name]
    keys: list[list[str] | None] = [lora or None] * len(places)
    if content.salt is not None and places[0] == 0:
        keys[0] = [*lora, content.salt]
    return keys


def _outside(spans: Sequence[Span], covers: Sequence[Span]) -> list[Span]:
    """The parts of ``spans`` that no span of ``covers`` holds."""
    left = list(spans)
    for start, end in covers:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, start)), (max(first, end), last))
            if part[0] < part[1]
        ]
    return left
