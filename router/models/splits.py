"""Splits: a share of a model's requests goes to workers with a label, or to another model (a canary).

    request ──key──> hash, from 0 to 1 ── below the ratio? ──> canary
                                       └─ else ─────────────> rest

The hash is the same at all replicas, and a greater ratio keeps the requests that a smaller one took. The key
is that of a conversation, so that its turns find their cache. Neither part is an obstacle: where none of its
workers may take a request, the others do, and that is counted.
"""

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import xxhash

from policies import Slots
from radix import HASH_BYTES
from router.fleet import Core
from router.gateway.identity import PromptHasher
from router.gateway.parsing import ParsedRequest
from router.model_rules import Split
from router.models.labels import LabelIndex

HASHES = 1 << 64

CANARY, REST, ELSEWHERE = "canary", "rest", "elsewhere"


class Drawn(msgspec.Struct, frozen=True, gc=False):
    """The part of a split that a request belongs to.

    Attributes:
        split: The model that is split.
        part: `CANARY` or `REST`.
        why: In words.
        model: Model that serves it instead; empty for its own.
        label: Label of the canary's workers; empty where the canary is a model.
        elsewhere: No worker of the canary's model could take it, so its own model serves it.
    """

    split: str
    part: str
    why: str
    labels: LabelIndex
    count: Callable[[str, str], None]
    model: str = ""
    label: str = ""
    elsewhere: bool = False

    def among(self, slots: Slots) -> Slots:
        """Return the slots of its part; all of them if it has none."""
        if not self.label:
            return slots
        own = self._own(slots)
        return slots[own] if own.any() and not own.all() else slots

    def ended(self, slot: int) -> None:
        """Count the request; ``slot`` is that of the last worker, -1 if it had none."""
        elsewhere = self.elsewhere
        if slot >= 0 and self.label:
            elsewhere = not self._own(np.array([slot])).all()
        self.count(self.split, f"{self.part}_{ELSEWHERE}" if elsewhere else self.part)

    def told(self) -> dict[str, str]:
        """Return it for logs and views."""
        return {"split": self.part, "split_why": self.why}

    def _own(self, slots: Slots) -> "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]":
        has_label = np.isin(slots, self.labels.slots_of(self.label))
        return has_label if self.part == CANARY else ~has_label


class Splits:
    """The splits of one gateway; ``count`` counts an ended request by its split and part."""

    def __init__(
        self,
        splits: Mapping[str, Split],
        core: Core,
        hasher: PromptHasher,
        labels: LabelIndex,
        count: Callable[[str, str], None],
    ) -> None:
        self._splits, self._hasher, self._labels, self._count = splits, hasher, labels, count
        self._registry = core.registry

    def drawn(self, parsed: ParsedRequest, session: str = "") -> Drawn | None:
        """Return the part of a request of a session, empty for none; None if its model is not split."""
        split = self._splits.get(parsed.model or "")
        if split is None or parsed.model is None:
            return None
        key, what = self._key(parsed, session, split)
        seed = self._hasher.root((b"split", parsed.model.encode()))
        at = xxhash.xxh3_64_intdigest(key, seed) / HASHES
        part = CANARY if at < split.ratio else REST
        why = f"the hash of {what} is {at:.4f}, the canary's are below {split.ratio:g}"
        model, elsewhere = "", False
        if split.model and part == CANARY:
            elsewhere = not len(self._registry.eligible(split.model, self._registry.now_us()))
            model = "" if elsewhere else split.model
            if elsewhere:
                why += f"; no worker of {split.model} may take it now"
        return Drawn(parsed.model, part, why, self._labels, self._count, model, split.label, elsewhere)

    def _key(self, parsed: ParsedRequest, session: str, split: Split) -> tuple[bytes, str]:
        """Return the bytes by which a request is drawn, and their kind."""
        tenant = parsed.tenant.encode()
        if split.stick == "tenant":
            return tenant, "its tenant"
        if split.stick == "none":
            return parsed.key.to_bytes(HASH_BYTES, "little"), "its prompt"
        if session:
            return b"\0".join((tenant, session.encode())), "its session"
        blocks = max(1, -(-split.stick_tokens // self._hasher.block_tokens))
        path = parsed.paths[0] if parsed.paths else b""
        found = min(blocks, len(path) // HASH_BYTES)
        if not found:
            return parsed.prefix_key.to_bytes(HASH_BYTES, "little"), "its prompt"
        return path[(found - 1) * HASH_BYTES : found * HASH_BYTES], f"its first {found} blocks"
