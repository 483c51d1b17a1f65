"""Prompts and answers as the engine model knows them."""

from typing import Any

from loadtest.engine.outputs import NO_OUTPUT, Output
from loadtest.engine.served import Extra, served_job
from loadtest.engine.tokens import pack_ids

NOBODY: Any = None
NOTHING = Extra()


def blocks(tokens: int, extra: Extra = NOTHING, output: Output = NO_OUTPUT) -> Any:
    job = served_job(pack_ids(range(tokens)), extra, output, NOBODY, block_tokens=4)
    return job.blocks, job.final_blocks, job.final_tokens


def test_a_prompt_is_its_full_blocks_and_an_answer_continues_them() -> None:
    """10 tokens are two full blocks; of 7 more the last was never computed: 16 tokens are four."""
    prompt, final, final_tokens = blocks(10, output=Output(7, kept=b"abcd" * 7))

    assert (len(prompt), len(final), final_tokens) == (16, 32, 16)
    assert final.startswith(prompt)


def test_without_an_answer_the_whole_prompt_stays() -> None:
    prompt, final, final_tokens = blocks(8)

    assert prompt == final
    assert final_tokens == 8


def test_prompts_share_blocks_within_a_namespace_only() -> None:
    assert blocks(12)[0].startswith(blocks(8)[0])
    assert blocks(8)[0] != blocks(8, extra=Extra(lora_name="adapter"))[0]
