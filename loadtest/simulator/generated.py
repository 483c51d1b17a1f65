"""Sessions of agents drawn from a seed, without a trace.

Lengths are lognormal with the medians of recorded coding agents (`loadtest.simulator.agentic`: first prompts
of 24,000 tokens, of which 15,000 are tools and system prompt; answers of 217 tokens, 912 at P90; pauses of 10
s, 166 s at P90 before they are cut; 48 requests per session):

    product   tools + system | task | answer | result | answer | result ...     grows until the session ends
                                       └─> up to three sub-agents side by side, with a prompt of their own

A conversation only grows. Every session draws from a generator of its own: the first sessions are the same
however many there are.
"""

import random
from dataclasses import dataclass

import numpy as np

from loadtest.simulator.agentic import GAP_S_MAX, USERS
from loadtest.simulator.identity import HASH_BYTES, hashes_of, scope_root
from loadtest.simulator.workload import ENGINE_BLOCK_TOKENS, Session, SimRequest, Workload


@dataclass(frozen=True, slots=True)
class Lengths:
    """A lognormal distribution of whole numbers up to ``most``; sigma is of the logarithm."""

    median: float
    sigma: float
    most: float

    def draw(self, chance: random.Random) -> float:
        """Draw one, at least 1."""
        return min(max(self.median * chance.lognormvariate(0.0, self.sigma), 1.0), self.most)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgenticShape:
    """Distributions of the sessions.

    Attributes:
        products: Each with tools and a system prompt that all its sessions share.
        system_tokens: Range of those.
        task: First message of a session, tokens.
        result: Every later one, tokens.
        output: Answers, tokens.
        turns: Requests per session, those of sub-agents not counted.
        pause_s: Between an answer and the next request, seconds.
        agents_ratio: Share of turns after which sub-agents work.
        agents_max: Side by side.
        agent_turns: Requests per sub-agent.
        context_tokens_max: A conversation ends before it grows longer; its first prompt is cut.
    """

    products: int = 6
    system_tokens: tuple[int, int] = (8_000, 20_000)
    task: Lengths = Lengths(8_000, 1.0, 100_000)
    result: Lengths = Lengths(900, 1.3, 60_000)
    output: Lengths = Lengths(217, 1.12, 16_000)
    turns: Lengths = Lengths(40, 0.9, 300)
    pause_s: Lengths = Lengths(10, 2.2, GAP_S_MAX)
    agents_ratio: float = 0.02
    agents_max: int = 3
    agent_turns: Lengths = Lengths(8, 0.6, 30)
    context_tokens_max: int = 400_000


CODING_AGENTS = AgenticShape()
"""As recorded, but for the one request in fifty that is longer than `context_tokens_max`."""


def generate_agentic(
    *, users: int = USERS, sessions: int = 200, seed: int = 1, shape: AgenticShape = CODING_AGENTS
) -> Workload:
    """Draw ``sessions`` > 0 of agents as a closed loop of ``users`` > 0."""
    assert users > 0
    assert sessions > 0
    made = tuple(Session(None, _SessionMaker(shape, seed, number).make()) for number in range(sessions))
    notes = f"closed loop of {users} users, seed {seed}"
    return Workload("generated agents", made, users=users, notes=notes, named_sessions=True)


class _SessionMaker:
    def __init__(self, shape: AgenticShape, seed: int, number: int) -> None:
        self._shape = shape
        self._name = f"{seed}/agents/{number}"
        self._chance = random.Random(self._name)
        self._product = self._chance.randrange(shape.products)
        product = random.Random(f"{seed}/product/{self._product}")
        self._system_tokens = product.randint(*shape.system_tokens)
        self._agent_system_tokens = product.randint(*shape.system_tokens) // 2
        self._seed = seed
        self._made: list[SimRequest] = []

    def make(self) -> tuple[SimRequest, ...]:
        turns = int(self._shape.turns.draw(self._chance))
        self._conversation("main", self._system_tokens, turns, (), self._shape.agents_ratio)
        return tuple(self._made)

    def _conversation(
        self, name: str, system_tokens: int, turns: int, after: tuple[int, ...], agents_ratio: float
    ) -> int:
        """Add the requests of a conversation; returns the index of the last one."""
        shape, chance = self._shape, self._chance
        growth: list[tuple[int, int]] = []  # Prompt and output tokens of every turn.
        tokens = system_tokens + int(shape.task.draw(chance))
        while len(growth) < turns:
            output_tokens = min(int(shape.output.draw(chance)), shape.context_tokens_max // 2)
            if tokens + output_tokens > shape.context_tokens_max:
                if growth:
                    break
                tokens = shape.context_tokens_max - output_tokens
            growth.append((tokens, output_tokens))
            tokens += output_tokens + int(shape.result.draw(chance))
        blocks = self._blocks(f"{name}/{len(self._made)}", system_tokens, sum(growth[-1]))
        for turn, (tokens, output_tokens) in enumerate(growth):
            prompt_bytes = tokens // ENGINE_BLOCK_TOKENS * HASH_BYTES
            held_bytes = (tokens + output_tokens - 1) // ENGINE_BLOCK_TOKENS * HASH_BYTES
            self._made.append(
                SimRequest(
                    blocks=blocks[:prompt_bytes],
                    tokens=tokens,
                    output_tokens=output_tokens,
                    answer=blocks[prompt_bytes:held_bytes],
                    delay_s=shape.pause_s.draw(chance) if after else 0.0,
                    after=after,
                )
            )
            after = (len(self._made) - 1,)
            if turn < len(growth) - 1 and chance.random() < agents_ratio:
                after = self._agents(after)
        return len(self._made) - 1

    def _agents(self, after: tuple[int, ...]) -> tuple[int, ...]:
        """Add sub-agents that work side by side; returns their last requests."""
        lasts: list[int] = []
        for number in range(self._chance.randint(1, self._shape.agents_max)):
            turns = int(self._shape.agent_turns.draw(self._chance))
            lasts.append(self._conversation(f"agent{number}", self._agent_system_tokens, turns, after, 0.0))
        return tuple(lasts)

    def _blocks(self, name: str, system_tokens: int, tokens: int) -> bytes:
        """Packed hashes of a whole conversation; those of tools and system prompt are the product's."""
        ids = np.arange(tokens // ENGINE_BLOCK_TOKENS, dtype=np.uint64)
        hashes = hashes_of(scope_root(self._name, name), ids)
        shared = min(system_tokens // ENGINE_BLOCK_TOKENS, len(ids))
        hashes[:shared] = hashes_of(scope_root(self._seed, self._product, system_tokens), ids[:shared])
        return hashes.tobytes()
