"""Prompt identity: from prompts to paths of block hashes.

A prompt is a stream of bytes (a conversation, see `router.gateway.conversation`), a text, or token
ids. What must be equal before blocks may be compared goes into the *root* of the chain: namespace,
kind of prompt, tenant, model, LoRA, and fields that change the start of what the engine renders
(the *scope*). Everything else is in the blocks, so that a longer prompt extends the path.

Token ids are what engines hash themselves, so their root has only what an engine keeps apart
(`PromptHasher.engine_root`): the model or adapter, and the salt. Whoever made the ids, a client, our
tokenizer or an engine that tells what it holds, comes to the same path.

    scope ──► root ──► block 0 ──► block 1 ──► ... ──► rest (shorter than a block)
                          │                              │
                          └ prefix_key                   └ key: the whole prompt

``key`` and ``prefix_key`` only spread and break ties; the paths decide.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
import xxhash

from radix import BLOCK_BYTES, BLOCK_TOKENS, chain_bytes, chain_token_ids, root_hash
from router.gateway.conversation import CACHE_CONTROL, canonical_json, encode, loads, without

PATHS_MAX = 64
"""Prompts of one batch that count for affinity; the rest follows them to the same worker."""

TOOLS_CACHE_BYTES_MAX = 32 << 20
"""Bound of the canonical JSON remembered per process; an agent's tools are some 20 to 100 KB."""

ROOTS_MAX = 1000
ROOT_BYTES_MAX = 500
"""Bounds on the roots remembered, half a megabyte; all they are made of comes from clients."""

HASH_BYTES = 8

ID_BYTES = 4

Prompt = bytes | str | list[int]
"""A conversation's canonical stream, a text, or token ids."""


class Identity(msgspec.Struct, frozen=True, gc=False):
    """What identifies the prompts of one request.

    Attributes:
        paths: Packed block hashes of each prompt, `PATHS_MAX` at most; empty bytes for a prompt
            shorter than one block.
        prompt_bytes: Canonical bytes of all prompts; token ids not counted.
        prompt_token_ids: Token ids of all prompts.
        key: 64-bit hash of all of the prompts.
        prefix_key: 64-bit hash of the first prompt's first block, or of all of it if it is shorter.
    """

    paths: tuple[bytes, ...]
    prompt_bytes: int
    prompt_token_ids: int
    key: int
    prefix_key: int


class PromptHasher:
    """Identifies prompts within one namespace; one per process.

    Args:
        namespace: Replicas of one namespace compute equal identities; its hash is the seed until `use_seed`.
        block_tokens: Block size of token ids.
        block_bytes: Block size of text, bytes.
    """

    def __init__(
        self, namespace: str, *, block_tokens: int = BLOCK_TOKENS, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._seed = xxhash.xxh3_64_intdigest(encode(namespace))
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self._roots: dict[tuple[bytes, ...], int] = {}
        self._canonical: OrderedDict[bytes, bytes] = OrderedDict()
        self._canonical_bytes = 0

    def use_seed(self, seed: int) -> None:
        """Hash with another seed from now on: one that all replicas share and no client can guess."""
        self._seed = seed
        self._roots.clear()
        self._canonical.clear()
        self._canonical_bytes = 0

    def identify(
        self, scope: tuple[bytes, ...], prompts: Sequence[Prompt], ids_root: int | None = None
    ) -> Identity:
        """Cut prompts into blocks and chain them.

        Args:
            scope: What must be equal before blocks may be compared, in a fixed order.
            prompts: The prompts of the request; all are counted, the first `PATHS_MAX` get a path.
            ids_root: The root of token ids (`engine_root`); None if the scope separates them, too.
        """
        paths: list[bytes] = []
        prompt_bytes = prompt_token_ids = prefix_key = key = 0
        for index, prompt in enumerate(prompts):
            if isinstance(prompt, list):
                prompt_token_ids += len(prompt)
            else:
                data = prompt if isinstance(prompt, bytes) else encode(prompt)
                prompt_bytes += len(data)
            if index >= PATHS_MAX:
                continue
            if isinstance(prompt, list):
                root = self.root((b"ids", *scope)) if ids_root is None else ids_root
                try:
                    path = chain_token_ids(prompt, root, self.block_tokens)
                    tail = array("I", prompt[len(path) // HASH_BYTES * self.block_tokens :]).tobytes()
                except (OverflowError, TypeError):  # no engine has such a token: it will say so
                    path, tail = b"", canonical_json(prompt)
            else:
                root = self.root((b"chat" if isinstance(prompt, bytes) else b"text", *scope))
                path = chain_bytes(data, root, self.block_bytes)
                tail = data[len(path) // HASH_BYTES * self.block_bytes :]
            paths.append(reusable(path, tail) if isinstance(prompt, list) else path)
            key, prefix_key = keys_with(index, key, prefix_key, root, path, tail)
        return Identity(tuple(paths), prompt_bytes, prompt_token_ids, key, prefix_key)

    def body_key(self, scope: tuple[bytes, ...], body: bytes) -> int:
        """A 64-bit hash of a body that has no prompt."""
        return xxhash.xxh3_64_intdigest(body, self.root((b"body", *scope)))

    def session_hash(self, tenant: bytes, session: str) -> int:
        """A 64-bit hash of a client's hint which of a tenant's requests belong together."""
        return xxhash.xxh3_64_intdigest(encode(session), self.root((b"session", tenant)))

    def identify_packed(self, root: int, prompts: Sequence[bytes]) -> Identity:
        """Identify prompts of which the token ids are known, as `identify` does; several threads may ask.

        Args:
            root: Of the ids (`engine_root`).
            prompts: Each as 32-bit integers.
        """
        block_bytes = ID_BYTES * self.block_tokens
        paths = []
        key = prefix_key = 0
        for index, packed in enumerate(prompts[:PATHS_MAX]):
            path = chain_bytes(packed, root, block_bytes)
            tail = memoryview(packed)[len(path) // HASH_BYTES * block_bytes :]
            paths.append(reusable(path, tail))
            key, prefix_key = keys_with(index, key, prefix_key, root, path, tail)
        return Identity(tuple(paths), 0, sum(map(len, prompts)) // ID_BYTES, key, prefix_key)

    def engine_root(self, model: str, salt: str) -> int:
        """The root of token ids as an engine keeps them apart.

        Args:
            model: What it caches under: the LoRA adapter's name if there is one, else the model's own
                (`router.fleet.Registry.cached_as`).
            salt: The ``cache_salt`` that it sees, the tenant's and the client's own combined
                (`router.gateway.salting`); empty for none.
        """
        return self.root((b"ids", encode(model), encode(salt)))

    def root(self, parts: tuple[bytes, ...]) -> int:
        """The root of a chain: the kind of the prompt (``chat``, ``text``, ``ids``, ``body``), and its scope.

        Remembered: many prompts share the few of a tenant and a model.
        """
        root = self._roots.get(parts)
        if root is None:
            root = root_hash(self._seed, *parts)
            if sum(map(len, parts)) <= ROOT_BYTES_MAX:
                if len(self._roots) >= ROOTS_MAX:
                    self._roots.clear()
                self._roots[parts] = root
        return root

    def canonical(self, raw: msgspec.Raw) -> bytes:
        """Canonical JSON of a field, remembered by the hash of the client's bytes.

        Agents send the same tools with every turn: hashing 28 KB costs 1 µs, canonicalising it 100.

        Raises:
            ValueError: If it is not JSON after all (bytes that are not UTF-8).
        """
        view = memoryview(raw)
        digest = xxhash.xxh3_128_digest(view, self._seed)
        known = self._canonical.get(digest)
        if known is not None:
            self._canonical.move_to_end(digest)
            return known
        canonical = canonical_json(without(loads(view), CACHE_CONTROL))
        if len(canonical) <= TOOLS_CACHE_BYTES_MAX // 8:
            self._canonical[digest] = canonical
            self._canonical_bytes += len(canonical)
            while self._canonical_bytes > TOOLS_CACHE_BYTES_MAX:
                self._canonical_bytes -= len(self._canonical.popitem(last=False)[1])
        return canonical


def reusable(path: bytes, tail: bytes | memoryview) -> bytes:
    """The part of a path of token ids that an engine can reuse: the full blocks before the last token.

    Engines compute the last token of a prompt in any case, for its logits (vLLM 0.32
    ``v1/core/kv_cache_manager.py``, ``get_computed_blocks``), so the block that it completes is not reused
    when the prompt comes again, and the window that a longer one goes on from is kept before it
    (``kv_cache_coordinator.py``, ``replay_boundaries``). Text says too little of its tokens for that.

    Args:
        path: All full blocks of a prompt.
        tail: What follows them.
    """
    return path if tail else path[:-HASH_BYTES]


def keys_with(
    index: int, key: int, prefix_key: int, root: int, path: bytes, tail: bytes | memoryview
) -> tuple[int, int]:
    """``key`` and ``prefix_key`` with one prompt more.

    Args:
        index: How many prompts came before.
        key: Of those.
        prefix_key: Of those.
        root: Of this prompt.
        path: Of this prompt.
        tail: What follows its last full block.
    """
    last = int.from_bytes(path[-HASH_BYTES:], "little") if path else root
    whole = xxhash.xxh3_64_intdigest(tail, last)
    if index == 0:
        return whole, int.from_bytes(path[:HASH_BYTES], "little") if path else whole
    return xxhash.xxh3_64_intdigest(whole.to_bytes(HASH_BYTES, "little"), key), prefix_key
