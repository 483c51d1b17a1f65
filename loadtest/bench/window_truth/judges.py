"""Predictors of the part of a prompt that an engine reuses.

Each predicts a prompt and is then told that it was answered:

    History     the gateway's own fold of placements, and nothing else
    Simulated   the engine's KV cache as the simulator models it (`loadtest.engine.kv`); it knows answers, too

`attention_of` and `rules_of` describe the tiny models (`loadtest.vllm.models`) to both.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from loadtest.engine.kv.cache import KvCache
from loadtest.engine.kv.rules import CacheRules
from policies import FleetRules, FleetState, Placed, WorkerPut
from radix import FULL_ATTENTION, AttentionProfile, chain_token_ids
from router.gateway.identity import PromptHasher

WORKER = "engine:1"

BLOCK_TOKENS = 32

WINDOW_TOKENS = 64
SWA_GROUPS = {"qwen3": 0, "gemma3": 5, "mimo_v2": 3}
"""Groups of layers with a window, by kind of model; beside them all have one with full attention."""


def attention_of(kind: str) -> AttentionProfile:
    """Condition under which a kind of tiny model can go on."""
    return AttentionProfile("sliding_window", WINDOW_TOKENS) if SWA_GROUPS[kind] else FULL_ATTENTION


def rules_of(kind: str, *, kv_blocks: int, step_tokens: int) -> CacheRules:
    """Return the cache rules of an engine with a kind of tiny model.

    Args:
        kind: Of `SWA_GROUPS`.
        kv_blocks: ``--num-gpu-blocks-override``; one of them is vLLM's null block.
        step_tokens: ``--max-num-batched-tokens``.
    """
    tokens, groups = (kv_blocks - 1) * BLOCK_TOKENS, SWA_GROUPS[kind]
    plain = CacheRules(
        full_tokens=tokens,
        block_tokens=BLOCK_TOKENS,
        chunk_tokens=step_tokens,
        match_rule="vllm",
        insert_early=True,
    )
    if not groups:
        return plain
    swa_tokens = tokens // (2 * groups)  # one pool, so how it is divided does not matter
    return replace(
        plain,
        attention="sliding_window",
        window_tokens=WINDOW_TOKENS,
        swa_groups=groups,
        swa_tokens=swa_tokens,
        full_tokens=tokens - groups * swa_tokens,
    )


@dataclass(frozen=True, slots=True)
class Predicted:
    """Prediction for one prompt: cached tokens of its start, and those from which the engine can go on."""

    matched: int
    reusable: int


class Judge(Protocol):
    """Predicts, and learns sent prompts."""

    def predict(self, prompt: tuple[int, ...]) -> Predicted:
        """Predicted reuse of a prompt that comes now; changes nothing."""

    def answered(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        """A prompt was sent and answered."""


class History:
    """The gateway's fold, for one worker."""

    def __init__(self, profile: AttentionProfile) -> None:
        self._profile = profile
        self._hasher = PromptHasher("window-truth", block_tokens=BLOCK_TOKENS)
        self._fleet = FleetState(FleetRules(block_tokens=BLOCK_TOKENS))
        self._fleet.apply(WorkerPut(WORKER, 1, "bench", "http://engine:1"))
        self._at_us = 1

    def predict(self, prompt: tuple[int, ...]) -> Predicted:
        """See `Judge`."""
        matched, safe = self._match(self._path(prompt))
        return Predicted(matched * BLOCK_TOKENS, safe * BLOCK_TOKENS)

    def answered(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        """See `Judge`."""
        path = self._path(prompt)
        matched, safe = self._match(path)
        self._at_us += 1_000
        windows = self._profile.needs_ends
        self._fleet.apply(
            Placed(
                f"r{self._at_us}",
                self._at_us,
                WORKER,
                "bench",
                1,
                len(prompt),
                len(prompt),
                (path,),
                windows,
                safe_blocks=safe,
                junction_blocks=matched if windows else 0,
            )
        )

    def _path(self, prompt: tuple[int, ...]) -> bytes:
        return self._hasher.identify((), [list(prompt)]).paths[0]

    def _match(self, path: bytes) -> tuple[int, int]:
        slot = next(iter(self._fleet.workers())).slot
        match = self._fleet.tree.match(path, self._profile)
        return int(match.matched[slot]), int(match.safe[slot])


class Simulated:
    """The simulator's model of the engine's cache."""

    def __init__(self, rules: CacheRules) -> None:
        self._rules = rules
        self._cache = KvCache(rules)

    def predict(self, prompt: tuple[int, ...]) -> Predicted:
        """See `Judge`."""
        path = self._path(prompt)
        reusable = self._cache.match_tokens(path, len(prompt))
        return Predicted(self._cache.reach_tokens(path, len(prompt))[1], reusable)

    def answered(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        """See `Judge`."""
        cache, size = self._cache, self._rules.chunk_tokens
        lease = cache.open(self._path(prompt), len(prompt), len(answer), 0.0)
        assert cache.admit(lease, 0.0), "one request at a time fits"
        done = lease.matched_tokens
        while done < len(prompt):
            done = min(len(prompt), done + size)
            cache.computed(lease, done, 0.0)
        for token in range(1, len(answer)):
            cache.decoded(lease, token, 0.0)
        computed = (*prompt, *answer[:-1])
        cache.close(lease, self._path(computed), len(computed), 0.0)

    def _path(self, ids: tuple[int, ...]) -> bytes:
        return chain_token_ids(ids, 1, self._rules.block_tokens)
