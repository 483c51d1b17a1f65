"""Requests in the order in which they are sent, drawn from a seed.

Every kind of history that decides what an engine can reuse:

    new        shares nothing
    repeat     an earlier prompt as it was
    extend     an earlier prompt, and more
    fork       leaves an earlier prompt at a random depth
    refork     leaves an earlier prompt where another one has left it: at a junction
    continue   an earlier prompt, its answer as the engine gave it, and more
    branch     leaves such a continuation within the answer, or behind it

Token ids are drawn, so nothing is shared by accident. No choice depends on the engine: only the ids of
answers differ between engines.
"""

import random
import zlib
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["new", "repeat", "extend", "fork", "refork", "continue", "branch"]
KINDS: tuple[Kind, ...] = get_args(Kind)

ANSWERED: tuple[Kind, ...] = ("continue", "branch")
"""Kinds that come back to decoded tokens: requests alone do not tell which of them an engine keeps."""

WEIGHTS: Mapping[Kind, int] = {
    "new": 3,
    "repeat": 3,
    "extend": 4,
    "fork": 5,
    "refork": 3,
    "continue": 4,
    "branch": 2,
}

TOKEN_IDS = range(100, 2000)
"""Within the vocabulary of the tiny models (2,048), behind their special tokens."""

ALIGNED_RATIO = 0.25
"""Share of the prompts that are cut to whole blocks: there some rules differ by a block."""

RECENT = 48
"""Number of the latest prompts, junctions and continuations that later requests come back to."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request.

    Attributes:
        kind: Relation of its prompt to earlier ones.
        prompt: Token ids.
        answer_tokens: Exact length of its answer.
    """

    kind: Kind
    prompt: tuple[int, ...]
    answer_tokens: int


class Script:
    """Source of requests; each must be answered before the next is drawn.

    Args:
        block_tokens: The engine's, for prompts of whole blocks.
        kinds: Beside ``new``.
    """

    def __init__(
        self,
        seed: int,
        *,
        prompt_tokens_max: int = 900,
        block_tokens: int = 32,
        kinds: Sequence[Kind] = KINDS,
    ) -> None:
        self._random = random.Random(seed)
        self._max = prompt_tokens_max
        self._size = block_tokens
        self._kinds = [kind for kind in WEIGHTS if kind == "new" or kind in kinds]
        self._weights = [WEIGHTS[kind] for kind in self._kinds]
        self._asked: Asked | None = None
        self._prompts: deque[tuple[int, ...]] = deque(maxlen=RECENT)
        self._answered: deque[tuple[tuple[int, ...], int]] = deque(maxlen=RECENT)
        """Prompt and answer, and where the answer begins."""
        self._continued: deque[tuple[tuple[int, ...], int]] = deque(maxlen=RECENT)
        """The same of those that were continued."""
        self._junctions: deque[tuple[int, ...]] = deque(maxlen=RECENT)

    def draw(self) -> Asked:
        """The next request."""
        assert self._asked is None, "the last request must be answered first"
        draw = self._random
        kind = draw.choices(KINDS, [WEIGHTS[each] for each in KINDS])[0]
        shared = self._shared(kind)
        if shared is None:
            kind, shared = "new", ()
        prompt = shared
        if kind != "repeat":
            longest = self._max - len(shared)
            prompt = (*shared, *self._fresh(draw.randint(1, min(longest, 40 + longest // 2))))
            whole = len(prompt) // self._size * self._size
            if whole > len(shared) and draw.random() < ALIGNED_RATIO:
                prompt = prompt[:whole]
        self._asked = Asked(kind, prompt, draw.choice((1, 2, 8, 33, 70)))
        return self._asked

    def answered(self, answer: Sequence[int]) -> None:
        """The request that was drawn last was answered with these token ids."""
        asked, self._asked = self._asked, None
        assert asked is not None
        assert len(answer) == asked.answer_tokens
        self._prompts.append(asked.prompt)
        if len(asked.prompt) + len(answer) < self._max:
            self._answered.append(((*asked.prompt, *answer), len(asked.prompt)))

    def answer(self) -> tuple[int, ...]:
        """Draw an answer for the last request, the same for the same prompt, where there is no engine."""
        assert self._asked is not None
        chance = random.Random(zlib.crc32(array("I", self._asked.prompt).tobytes()))
        return tuple(chance.choices(TOKEN_IDS, k=self._asked.answer_tokens))

    def _shared(self, kind: Kind) -> tuple[int, ...] | None:
        """Common part of the prompt with earlier ones; None if there is nothing of that kind yet."""
        draw = self._random
        match kind:
            case "new":
                return ()
            case "repeat" | "extend":
                prompts = [prompt for prompt in self._prompts if kind == "repeat" or len(prompt) < self._max]
                return draw.choice(prompts) if prompts else None
            case "fork":
                if not self._prompts:
                    return None
                prompt = draw.choice(self._prompts)
                head = prompt[: draw.randint(1, len(prompt))]
                if len(head) == self._max:
                    return None
                self._junctions.append(head)
                return head
            case "refork":
                return draw.choice(self._junctions) if self._junctions else None
            case "continue":
                if not self._answered:
                    return None
                self._continued.append(draw.choice(self._answered))
                return self._continued[-1][0]
            case "branch":
                if not self._continued:
                    return None
                both, answer = draw.choice(self._continued)
                return both[: draw.randint(answer, len(both))]

    def _fresh(self, tokens: int) -> list[int]:
        return self._random.choices(TOKEN_IDS, k=tokens)
