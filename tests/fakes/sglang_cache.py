"""SGLang's own radix cache beside our model of it, for the same requests.

The cache runs in an interpreter of its own (`fakes.sglang_oracle`; docs/real-engines.md says how to make it).
"""

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.rules import CacheRules
from loadtest.vllm.home import EnginesHome
from radix import chain_token_ids

ORACLE = Path(__file__).parent / "sglang_oracle.py"

Request = tuple[list[int], list[int]]
"""Token ids of a prompt and of its answer."""


def interpreter() -> Path:
    """The interpreter that has SGLang; skips the test if there is none."""
    python = EnginesHome.usual().folder / "sglang" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"SGLang's cache is not installed in {python.parents[1]}: see docs/real-engines.md")
    return python


def drawn(seed: int, page: int, longest: int, count: int = 150) -> list[Request]:
    """New prompts, repetitions, continuations of answers, and forks anywhere, some of whole pages."""
    chance, made = random.Random(seed), []

    def tokens(length: int) -> list[int]:
        return [chance.randrange(1, 10**6) for _ in range(length)]

    for _ in range(count):
        kind = chance.random()
        if not made or kind < 0.2:
            prompt = tokens(chance.randint(1, longest))
        else:
            before, answer = chance.choice(made)
            whole = [*before, *answer]
            cut = {True: len(whole), False: chance.randint(1, len(whole))}[kind < 0.7]
            prompt = before if kind < 0.35 else whole[:cut] + tokens(chance.randint(1, longest // 3))
        if chance.random() < 0.3:
            prompt = prompt[: max(len(prompt) // page * page, 1)]
        answer = tokens(chance.choice([1, 2, 3, page, longest // 4, longest // 2]))
        made.append((prompt, answer))
    return made


def reused_by_sglang(requests: list[Request], **rules: Any) -> list[int]:
    """Tokens that SGLang's cache reuses of each; skips the test if it is not installed."""
    asked = json.dumps({**rules, "requests": requests})
    done = subprocess.run(
        [interpreter(), "-P", ORACLE],
        input=asked,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    reused: list[int] = json.loads(done.stdout.splitlines()[-1])
    return reused


def reused_by_model(requests: list[Request], rules: CacheRules) -> list[int]:
    """The same of our model."""
    cache, size, reused = KvCache(rules), rules.block_tokens, []
    for prompt, answer in requests:
        lease = cache.open(chain_token_ids(prompt, 7, size), len(prompt), len(answer), 0.0)
        assert cache.admit(lease, 0.0)
        reused.append(lease.matched_tokens)
        for at in range(lease.matched_tokens + rules.chunk_tokens, len(prompt), rules.chunk_tokens):
            cache.computed(lease, at, 0.0)
        cache.computed(lease, len(prompt), 0.0)
        computed = len(prompt) + len(answer) - 1
        cache.close(lease, chain_token_ids([*prompt, *answer][:computed], 7, size), computed, 0.0)
    return reused
