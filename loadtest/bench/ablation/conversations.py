"""The load: agents' conversations, cut down to a context of some thousand tokens.

What `loadtest.workload` plays on emulated engines, with three differences that a real engine asks for:

    every byte is drawn   also the answers that a conversation repeats. A run is then the same bytes whoever
                          answers, and two arms differ by their placements only. No engine finds those
                          answers in its cache, as with agents that leave their model's thinking out.
    tools are messages    (role ``tool``) and no definitions: models with random weights call none.
    conversations fork    now and then an agent goes back to an earlier answer and continues from there,
                          as after a rewind, an edited message or a sub-agent's start.

    turn 1   system | task
    turn 2   system | task | answer 1 | result
    turn 3   system | task | answer 1 | result | answer 2 | result
    turn 4   system | task | answer 1 | another result                        a fork

It is a closed loop: so many agents at work at the same time, each with one conversation after the other.
The working set is then the same on a fast machine and on a slow one, and so is what can be reused.

Lengths are in tokens of the model, and reached by so many of the words below.
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
"""Most tokenisers have a token for each. With the space these are four bytes on average, as in English
text, so that a gateway that counts a token for four bytes of text is not far off."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Shape:
    """How much load, and of what kind; lengths in tokens of the model.

    Attributes:
        agents: At work at the same time.
        conversations: Of each agent, one after the other.
        start_window_s: Agents start at uniform random times in this window, seconds.
        applications: Number of system prompts that they share.
        system_tokens: Range of a system prompt.
        task_tokens: Median of a first message.
        result_tokens: Median of a later message.
        spread: Sigma of these two lognormal lengths.
        message_tokens_max: No message is longer.
        answer_tokens: Of every answer, generated and repeated.
        turns: Range of turns of a conversation.
        prompt_tokens_max: A conversation ends before a prompt would be longer.
        fork_ratio: Share of the turns, from the third on, that go back to an earlier answer.
        think_s: Median pause before the next turn, seconds (lognormal, sigma 0.5).
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
    """One agent at work: a `loadtest.replay.Script` that says the same whatever it is answered."""

    start_s: float
    planned: tuple[Turn, ...] = field(repr=False)

    @property
    def turn_count(self) -> int:
        """How many requests it sends."""
        return len(self.planned)

    def turns(self) -> Generator[Turn, Outcome, None]:
        """Yield the requests, each with the whole conversation so far."""
        for turn in self.planned:  # noqa: UP028 - outcomes are sent here, which a tuple cannot take
            yield turn


def agents(shape: Shape, seed: int, model: str, tokens_per_word: float) -> list[Agent]:
    """Draw the load of one round.

    Args:
        shape: What to draw.
        seed: The same seed gives the same bytes.
        model: Name that requests ask for.
        tokens_per_word: Tokens that the model makes of one of `WORDS` and a space, on average, > 0.
    """
    drawer = _Drawer(shape, seed, model, tokens_per_word)
    return [drawer.agent(number) for number in range(shape.agents)]


def words(chance: random.Random, count: int) -> str:
    """So many words at random."""
    return " ".join(chance.choices(WORDS, k=count))


def tokens_per_word(tokenizer: Tokenizer) -> float:
    """Tokens that a model makes of one of `WORDS` and a space, on average."""
    count = 1000
    text = words(random.Random("tokens per word"), count)
    return len(tokenizer.encode(text, add_special_tokens=False).ids) / count


def ideal_ratio(scripts: Sequence[Agent], block_tokens: int) -> float:
    """Share of the prompts that one infinite cache, seen by all requests, would reuse, 0 to 1.

    Counted on bytes, in blocks of as many tokens of four bytes. An engine whose layers have windows reuses
    less behind a fork, however large it is.
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
        """A message, and about how many tokens it has."""
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
