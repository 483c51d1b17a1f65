"""Agents' conversations, cut down to a context of some thousand tokens.

`loadtest.workload` with three differences that a real engine asks for:

    every byte is drawn   also the repeated answers, so two arms differ by their placements only. No engine
                          finds those answers in its cache, as with agents that drop the model's thinking.
    tools are messages    (role ``tool``) and no definitions: models with random weights call none.
    conversations fork    an agent sometimes continues from an earlier answer, as after a rewind or an edit.

    turn 1   system | task
    turn 2   system | task | answer 1 | result
    turn 3   system | task | answer 1 | result | answer 2 | result
    turn 4   system | task | answer 1 | another result                        a fork

A closed loop of agents keeps the working set, and the possible reuse, the same on fast and slow machines.
Lengths are in tokens of the model.
"""

import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
from tokenizers import Tokenizer

from loadtest.client import Outcome
from loadtest.engine.tokens import TOKEN_BYTES
from loadtest.ideal import IdealCache
from loadtest.replay import Turn

Json = dict[str, object]

PATH = "/v1/chat/completions"

_COMMON = (
    "the a of to in is as be or by on if it at an we no do so any all and are not can get set has use one "
    "two end new out for key list line text time name data type file code call test item size read true when "
    "with that this from into then"
)
WORDS = tuple(_COMMON.split())
"""Words of one token in most tokenisers, four bytes with the space on average, as in English text."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Shape:
    """Load of one round; lengths in tokens of the model.

    Attributes:
        agents: At work at the same time.
        conversations: Number per agent, one after the other.
        start_window_s: Agents start at uniform random times in it.
        applications: Number of shared system prompts.
        system_tokens: Range.
        task_tokens: Median of a first message.
        result_tokens: Median of a later message.
        spread: Sigma of these two lognormal lengths.
        turns: Range per conversation.
        prompt_tokens_max: A conversation ends before a prompt would be longer.
        fork_ratio: Share of the turns, from the third on, that go back to an earlier answer.
        think_s: Median pause before the next turn (lognormal, sigma 0.5).
    """

    agents: int = 14
    conversations: int = 3
    start_window_s: float = 10.0
    applications: int = 3
    system_tokens: tuple[int, int] = (1000, 1600)
    task_tokens: int = 1500
    result_tokens: int = 350
    spread: float = 0.7
    message_tokens_max: int = 2500
    answer_tokens: int = 8
    turns: tuple[int, int] = (6, 13)
    prompt_tokens_max: int = 7500
    fork_ratio: float = 0.15
    think_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent at work: a `loadtest.replay.Script` whose requests do not depend on the answers."""

    start_s: float
    planned: tuple[Turn, ...] = field(repr=False)

    @property
    def turn_count(self) -> int:
        """Number of its requests."""
        return len(self.planned)

    def turns(self) -> Generator[Turn, Outcome, None]:
        """Yield the requests, each with the whole conversation so far."""
        for turn in self.planned:  # noqa: UP028 - outcomes are sent here, which a tuple cannot take
            yield turn


def agents(shape: Shape, seed: int, model: str, tokens_per_word: float) -> list[Agent]:
    """Draw the load of one round.

    ``tokens_per_word`` is the model's mean for one of `WORDS` with a space, > 0.
    """
    drawer = _Drawer(shape, seed, model, tokens_per_word)
    return [drawer.agent(number) for number in range(shape.agents)]


def words(chance: random.Random, count: int) -> str:
    """Random words."""
    return " ".join(chance.choices(WORDS, k=count))


def tokens_per_word(tokenizer: Tokenizer) -> float:
    """Tokens that a model makes of one of `WORDS` and a space, on average."""
    count = 1000
    text = words(random.Random("tokens per word"), count)
    return len(tokenizer.encode(text, add_special_tokens=False).ids) / count


def ideal_ratio(scripts: Sequence[Agent], block_tokens: int) -> float:
    """Share of the prompts, 0 to 1, that one infinite cache would reuse, in blocks of four bytes per token.

    An engine whose layers have windows reuses less behind a fork, however large its cache is.
    """
    cache = IdealCache(block_tokens)
    prompts = [turn.prompt for script in scripts for turn in script.planned]
    reused_tokens = sum(cache.reuse(prompt) for prompt in prompts)
    return TOKEN_BYTES * reused_tokens / sum(map(len, prompts))


class _Drawer:
    """Draws the agents of one seed; each has a random generator of its own."""

    def __init__(self, shape: Shape, seed: int, model: str, tokens_per_word: float) -> None:
        self._shape = shape
        self._seed = seed
        self._model = model
        self._tokens_per_word = tokens_per_word
        self._systems = [
            self._message("system", random.Random(f"{seed}/application/{number}"), *shape.system_tokens)
            for number in range(shape.applications)
        ]

    def agent(self, number: int) -> Agent:
        chance = random.Random(f"{self._seed}/agent/{number}")
        start_s = chance.uniform(0.0, self._shape.start_window_s)
        turns: list[Turn] = []
        for _ in range(self._shape.conversations):
            turns += self._conversation(chance)
        return Agent(start_s, tuple(turns))

    def _conversation(self, chance: random.Random) -> Iterator[Turn]:
        shape = self._shape
        messages = [chance.choice(self._systems), self._drawn("user", chance, shape.task_tokens)]
        for turn in range(chance.randint(*shape.turns)):
            if turn:
                # Messages are: system, task, then an answer and a result for every turn.
                if turn > 1 and chance.random() < shape.fork_ratio:
                    del messages[chance.randrange(3, len(messages), 2) :]
                else:
                    messages.append(
                        self._message("assistant", chance, shape.answer_tokens, shape.answer_tokens)
                    )
                messages.append(self._drawn("tool", chance, shape.result_tokens))
            if sum(tokens for _, tokens in messages) > shape.prompt_tokens_max:
                return
            think_s = shape.think_s * chance.lognormvariate(0.0, 0.5)
            yield self._turn([message for message, _ in messages], think_s)

    def _drawn(self, role: str, chance: random.Random, median_tokens: int) -> tuple[Json, int]:
        tokens = int(median_tokens * chance.lognormvariate(0.0, self._shape.spread))
        bounded = max(8, min(tokens, self._shape.message_tokens_max))
        return self._message(role, chance, bounded, bounded)

    def _message(self, role: str, chance: random.Random, least: int, most: int) -> tuple[Json, int]:
        tokens = chance.randint(least, most)
        text = words(chance, max(1, round(tokens / self._tokens_per_word)))
        return {"role": role, "content": text}, tokens

    def _turn(self, messages: list[Json], think_s: float) -> Turn:
        body = _encode(
            {
                "model": self._model,
                "messages": messages,
                "max_tokens": self._shape.answer_tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        prompt = "".join(f"{message['role']}\n{message['content']}\n" for message in messages).encode()
        return Turn(think_s, PATH, body, prompt)
