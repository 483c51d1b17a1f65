"""Prompt identity: from prompts to paths of block hashes.

A prompt is a stream of bytes (a conversation, see `router.gateway.conversation`), a text, or token ids. The
*root* of the chain has all that must be equal before blocks may be compared: namespace, kind of prompt,
tenant, model, LoRA, and fields that change the start of the rendered prompt (the *scope*). Everything else is
in the blocks, so a longer prompt extends the path. The root of token ids has only what an engine keeps apart
(`PromptHasher.engine_root`), so ids of a client, of our tokenizer and of an engine lead to the same path.

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

from radix import BLOCK_BYTES, BLOCK_TOKENS, HASH_BYTES, chain_prompt, root_hash
from router.gateway.conversation import CACHE_CONTROL, canonical_json, encode, loads, without

PATHS_MAX = 64
"""Prompts of one batch that count for affinity; the rest follows them to the same worker."""

TOOLS_CACHE_BYTES_MAX = 32 << 20
"""Bound of the canonical JSON cached per process; an agent's tools are some 20 to 100 KB."""

ROOTS_MAX = 1000
ROOT_BYTES_MAX = 500
"""Bounds on the cached roots, half a megabyte; their parts come from clients."""

ID_BYTES = 4

Prompt = bytes | str | list[int]
"""A conversation's canonical stream, a text, or token ids."""


class Identity(msgspec.Struct, frozen=True, gc=False):
    """Identity of the prompts of one request; see `router.gateway.parsing.ParsedRequest`."""

    paths: tuple[bytes, ...]
    prompt_bytes: int
    prompt_token_ids: int
    key: int
    prefix_key: int


class PromptHasher:
    """Identifies prompts within one namespace; one per process.

    The hash of the namespace is the ``seed`` until `use_seed`.
    """

    def __init__(
        self, namespace: str, *, block_tokens: int = BLOCK_TOKENS, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.seed = xxhash.xxh3_64_intdigest(encode(namespace))
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self._roots: dict[tuple[bytes, ...], int] = {}
        self._canonical: OrderedDict[bytes, bytes] = OrderedDict()
        self._canonical_bytes = 0

    def use_seed(self, seed: int) -> None:
        """Hash with another seed from now on: one that all replicas share and no client can guess."""
        self.seed = seed
        self._roots.clear()
        self._canonical.clear()
        self._canonical_bytes = 0

    def identify(
        self, scope: tuple[bytes, ...], prompts: Sequence[Prompt], ids_root: int | None = None
    ) -> Identity:
        """Cut prompts into blocks and chain them; all are counted, the first `PATHS_MAX` get a path.

        ``ids_root`` is the root of token ids (`engine_root`); None if the scope separates them, too.
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
                    path, whole, first = self._chain_ids(array("I", prompt).tobytes(), root)
                except (OverflowError, TypeError):  # no engine has such a token; it will refuse it
                    path = b""
                    whole = first = xxhash.xxh3_64_intdigest(canonical_json(prompt), root)
            else:
                root = self.root((b"chat" if isinstance(prompt, bytes) else b"text", *scope))
                path, whole, first = chain_prompt(data, root, self.block_bytes)
            paths.append(path)
            key, prefix_key = keys_with(index, key, prefix_key, whole, first)
        return Identity(tuple(paths), prompt_bytes, prompt_token_ids, key, prefix_key)

    def _chain_ids(self, packed: bytes, root: int) -> tuple[bytes, int, int]:
        path, whole, first = chain_prompt(packed, root, ID_BYTES * self.block_tokens)
        return reusable(path, len(packed) % (ID_BYTES * self.block_tokens)), whole, first

    def body_key(self, scope: tuple[bytes, ...], body: bytes) -> int:
        """Return a 64-bit hash of a body that has no prompt."""
        return xxhash.xxh3_64_intdigest(body, self.root((b"body", *scope)))

    def session_hash(self, tenant: bytes, session: str) -> int:
        """Return a 64-bit hash of a client's hint which of a tenant's requests belong together."""
        return xxhash.xxh3_64_intdigest(encode(session), self.root((b"session", tenant)))

    def identify_packed(self, root: int, prompts: Sequence[bytes]) -> Identity:
        """Identify prompts given as 32-bit token ids, with the root of the ids; thread-safe."""
        paths = []
        key = prefix_key = 0
        for index, packed in enumerate(prompts[:PATHS_MAX]):
            path, whole, first = self._chain_ids(packed, root)
            paths.append(path)
            key, prefix_key = keys_with(index, key, prefix_key, whole, first)
        return Identity(tuple(paths), 0, sum(map(len, prompts)) // ID_BYTES, key, prefix_key)

    def engine_root(self, model: str, salt: str) -> int:
        """Return the root of token ids as an engine keeps them apart.

        The model is its cache's name: the LoRA adapter's, else the model's own
        (`router.fleet.Registry.cached_as`). The salt is the one that it sees (`router.gateway.salting`), or
        empty.
        """
        return self.root((b"ids", encode(model), encode(salt)))

    def root(self, parts: tuple[bytes, ...]) -> int:
        """Return the root of a chain: kind of the prompt (``chat``, ``text``, ``ids``, ``body``), then scope.

        Cached, since many prompts share the few of a tenant and a model.
        """
        root = self._roots.get(parts)
        if root is None:
            root = root_hash(self.seed, *parts)
            if sum(map(len, parts)) <= ROOT_BYTES_MAX:
                if len(self._roots) >= ROOTS_MAX:
                    self._roots.clear()
                self._roots[parts] = root
        return root

    def canonical(self, raw: msgspec.Raw) -> bytes:
        """Return canonical JSON of a field, cached by the hash of the client's bytes.

        Agents send the same tools with every turn: hashing 28 KB costs 1 µs, canonicalising it 100. Raises
        `ValueError` if it is not JSON after all (bytes that are not UTF-8).
        """
        view = memoryview(raw)
        digest = xxhash.xxh3_128_digest(view, self.seed)
        cached = self._canonical.get(digest)
        if cached is not None:
            self._canonical.move_to_end(digest)
            return cached
        canonical = canonical_json(without(loads(view), CACHE_CONTROL))
        if len(canonical) <= TOOLS_CACHE_BYTES_MAX // 8:
            self._canonical[digest] = canonical
            self._canonical_bytes += len(canonical)
            while self._canonical_bytes > TOOLS_CACHE_BYTES_MAX:
                self._canonical_bytes -= len(self._canonical.popitem(last=False)[1])
        return canonical


def reusable(path: bytes, tail: object) -> bytes:
    """Return the part of a path of token ids that an engine can reuse: the full blocks before the last token.

    Engines always compute the last token of a prompt, for its logits (vLLM 0.32
    ``v1/core/kv_cache_manager.py``, ``get_computed_blocks``), so the block that it completes is not reused
    when the prompt comes again, and the window that a longer prompt goes on from is kept before it
    (``kv_cache_coordinator.py``, ``replay_boundaries``). Text says too little of its tokens for that.
    """
    return path if tail else path[:-HASH_BYTES]


def keys_with(index: int, key: int, prefix_key: int, whole: int, first: int) -> tuple[int, int]:
    """Return ``key`` and ``prefix_key`` with one prompt more, the one behind ``index`` others.

    ``whole`` is the hash of that prompt, ``first`` that of its first block (`radix.chain_prompt`).
    """
    if index == 0:
        return whole, first
    return xxhash.xxh3_64_intdigest(whole.to_bytes(HASH_BYTES, "little"), key), prefix_key
