"""Requests of the emulator: prompts as tokens, and as the block hashes that the engine model knows."""

from dataclasses import dataclass

from loadtest.engine.job import Job, Sink
from loadtest.engine.outputs import Output
from loadtest.engine.tokens import TOKEN_BYTES, count
from radix import chain_bytes, root_hash

_SEED = 0
"""Hashes of one emulator mean nothing to another, or to a gateway: any seed will do."""


@dataclass(slots=True, eq=False, kw_only=True)
class ServedJob(Job):
    """One prompt with one answer of a client's request.

    Attributes:
        prompt: Packed tokens of the prompt.
        output: What the answer will be.
    """

    prompt: bytes
    output: Output


def served_job(
    prompt: bytes,
    namespace: bytes,
    output: Output,
    sink: Sink,
    *,
    block_tokens: int,
    index: int = 0,
    id_: str = "",
    stream: bool = True,
) -> ServedJob:
    """Make the job of a prompt.

    Args:
        prompt: Packed tokens, not empty.
        namespace: What prompts must have in common to share blocks: adapter and salt.
        output: The answer.
        sink: Who is told.
        block_tokens: Tokens of a KV block.
        index: Number of the answer within its request.
        id_: What the engine's clients call it.
        stream: Whether the sink wants tokens as they come.
    """
    # Every token but the last sampled one is computed, so it has KV that the next turn can reuse.
    sequence = prompt + output.kept[:-TOKEN_BYTES]
    blocks = chain_bytes(sequence, root_hash(_SEED, namespace), block_tokens * TOKEN_BYTES)
    prompt_tokens = count(prompt)
    return ServedJob(
        blocks=blocks[: prompt_tokens // block_tokens * 8],
        prompt_tokens=prompt_tokens,
        output_tokens=output.tokens,
        final_blocks=blocks,
        final_tokens=count(sequence),
        sink=sink,
        stream=stream,
        reason=output.finish_reason,
        index=index,
        id=id_,
        prompt=prompt,
        output=output,
    )
