"""Requests of the emulator: prompts as tokens, and as the block hashes that the engine model knows."""

from dataclasses import dataclass
from typing import Any

from loadtest.engine.job import Job, Sink
from loadtest.engine.kv.tree import HASH_BYTES
from loadtest.engine.kv_encoding import Content
from loadtest.engine.outputs import Output
from loadtest.engine.tokens import TOKEN_BYTES, count
from radix import chain_bytes, root_hash

_SEED = 0
"""Hashes of one emulator mean nothing to another, or to a gateway: any seed will do."""


@dataclass(frozen=True, slots=True)
class Extra:
    """Identity that requests must share to share blocks, beside their tokens; ``lora_id`` counts from 1."""

    salt: str | None = None
    lora_name: str | None = None
    lora_id: int | None = None

    @property
    def root(self) -> int:
        """Hash that their blocks are chained to."""
        parts = [(self.lora_name or "").encode()]
        if self.salt is not None:
            parts.append(self.salt.encode())
        return root_hash(_SEED, *parts)


class KnownBlocks(bytes):
    """Packed hashes with their tokens and identity: KV events carry token ids, and the cache has none."""

    tokens: bytes
    extra: Extra

    @classmethod
    def of(cls, blocks: bytes, tokens: bytes, extra: Extra) -> "KnownBlocks":
        """Attach what hashes stand for."""
        blocks_known = cls(blocks)
        blocks_known.tokens = tokens
        blocks_known.extra = extra
        return blocks_known

    @property
    def content(self) -> Content:
        """For KV events."""
        return Content(self, self.tokens, self.extra.salt, self.extra.lora_name, self.extra.lora_id)


@dataclass(slots=True, eq=False, kw_only=True)
class ServedJob(Job):
    """One prompt with one answer of a client's request.

    ``transfer_params`` is ``kv_transfer_params`` of the answer.
    """

    prompt: bytes
    output: Output
    transfer_params: dict[str, Any] | None = None


def served_job(
    prompt: bytes,
    extra: Extra,
    output: Output,
    sink: Sink,
    *,
    block_tokens: int,
    index: int = 0,
    id_: str = "",
    stream: bool = True,
    rank: int = -1,
) -> ServedJob:
    """Make the job of a packed prompt, not empty, with its answer.

    ``index`` is its number within the request.
    """
    # Every token but the last sampled one is computed, so it has KV that the next turn can reuse.
    sequence = prompt + output.kept[:-TOKEN_BYTES]
    blocks = chain_bytes(sequence, extra.root, block_tokens * TOKEN_BYTES)
    prompt_tokens = count(prompt)
    return ServedJob(
        blocks=KnownBlocks.of(blocks[: prompt_tokens // block_tokens * HASH_BYTES], prompt, extra),
        prompt_tokens=prompt_tokens,
        output_tokens=output.tokens,
        final_blocks=KnownBlocks.of(blocks, sequence, extra),
        final_tokens=count(sequence),
        sink=sink,
        stream=stream,
        reason=output.finish_reason,
        index=index,
        id=id_,
        rank=rank,
        prompt=prompt,
        output=output,
    )
