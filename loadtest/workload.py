"""The built-in workload: seeded multi-turn sessions of tool-using agents.

All sessions of one application share its system prompt and tools; every turn repeats all that came before:

    turn 1   system + tools | task
    turn 2   system + tools | task | answer | tool result
    turn 3   system + tools | task | answer | tool result | answer | user's next wish ...

Lengths are lognormal, as measured on real coding agents (a median tool result of some hundred tokens with a
long tail), but contexts, think times and the number of sessions are cut so that one run takes half a minute
on two cores. The working set exceeds one engine's cache and fits the fleet's, most of a prompt is a known
prefix, and the new part of a turn is small and varies.

The same seed gives the same bytes in any order of sessions: each draws from a random generator of its own.
Only the answers come from the engine.
"""

import itertools
import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from loadtest.client import Outcome
from loadtest.engine.template import render_chat
from loadtest.engine.tokens import TOKEN_BYTES
from loadtest.replay import Turn
from loadtest.traces import PromptText, TraceRequest

MODEL = "demo-model"

Json = dict[str, object]

_encode = msgspec.json.Encoder().encode

# Three letters and a space are one token of the emulated engine.
_WORDS = tuple(a + b + c for a in "bcdfglmnprst" for b in "aeiou" for c in "dklmnprstx")


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """Amount and kind of load; lengths in tokens.

    Attributes:
        start_window_s: Sessions start at uniform random times in it.
        applications: Each with its own system prompt and tools.
        system_tokens: Range of an application's system prompt.
        tools: Tools per application, about 100 tokens each.
        turns: Range of turns per session.
        task_tokens: Median of a session's first message.
        result_tokens: Median of a tool result.
        wish_tokens: Median of a user's later message.
        spread: Sigma of those three lognormal lengths.
        output_tokens: Range of generated tokens per turn.
        tool_share: Share of turns that end in a tool call.
        think_s: Median pause before the next turn (lognormal, sigma 0.6, at most 5 times it).
    """

    sessions: int = 72
    start_window_s: float = 15.0
    applications: int = 4
    system_tokens: tuple[int, int] = (2000, 5000)
    tools: int = 8
    turns: tuple[int, int] = (4, 9)
    task_tokens: int = 2500
    result_tokens: int = 700
    wish_tokens: int = 150
    spread: float = 1.0
    message_tokens_max: int = 8000
    output_tokens: tuple[int, int] = (12, 48)
    tool_share: float = 0.75
    think_s: float = 0.6


QUICK = WorkloadShape(sessions=10, start_window_s=1.5, turns=(3, 5), think_s=0.15)
"""A few seconds of the same kind, for tests."""


def words(chance: random.Random, tokens: int) -> str:
    """Return text of exactly ``tokens`` tokens of the emulated engine, and as many words."""
    return "".join(word + " " for word in chance.choices(_WORDS, k=tokens))


@dataclass(frozen=True, slots=True)
class Application:
    """Common part of all sessions of one application."""

    system: Json
    tools: tuple[Json, ...]


def _application(shape: WorkloadShape, seed: int | str, number: int) -> Application:
    chance = random.Random(f"{seed}/application/{number}")
    system = f"Agent {number}. " + words(chance, chance.randint(*shape.system_tokens))
    tools: tuple[Json, ...] = tuple(
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}_{tool}",
                "description": words(chance, 60).strip(),
                "parameters": {
                    "type": "object",
                    "properties": {"path": {"type": "string", "description": words(chance, 20).strip()}},
                    "required": ["path"],
                },
            },
        }
        for tool in range(shape.tools)
    )
    return Application({"role": "system", "content": system}, tools)


@dataclass(frozen=True, slots=True)
class _PlannedTurn:
    """Addition of a turn, drawn before the run: the text of ``message`` and the form of the answer."""

    think_s: float
    text: str
    output_tokens: int
    asks_tool: bool


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One agent at work: a `loadtest.replay.Script`."""

    start_s: float
    application: Application
    plan: tuple[_PlannedTurn, ...] = field(repr=False)
    model: str

    @property
    def turn_count(self) -> int:
        """Number of its requests."""
        return len(self.plan)

    def turns(self) -> Generator[Turn, Outcome, None]:
        """Yield the requests, each with the whole conversation so far."""
        messages: list[Json] = [self.application.system]
        call_ids: list[str] = []
        held_bytes = 0
        for planned in self.plan:
            if call_ids:
                messages += [
                    {"role": "tool", "tool_call_id": call_id, "content": planned.text} for call_id in call_ids
                ]
            else:
                messages.append({"role": "user", "content": planned.text})
            prompt = render_chat(messages, self.application.tools)
            outcome = yield Turn(
                think_s=planned.think_s,
                path="/v1/chat/completions",
                body=_encode(
                    {
                        "model": self.model,
                        "messages": messages,
                        **self._tools(planned),
                        "max_tokens": planned.output_tokens,
                        "ignore_eos": True,
                        "stream": True,
                        "stream_options": {"include_usage": True},
                    }
                ),
                prompt=prompt,
                held_bytes=held_bytes,
            )
            messages.append(_answer_message(outcome))
            call_ids = [call.id for call in outcome.tool_calls]
            # The last token of an answer is sampled but never computed: no engine holds it.
            held_bytes = len(prompt) + (outcome.output_tokens - 1) * TOKEN_BYTES

    def _tools(self, planned: _PlannedTurn) -> Json:
        """The tools, and whether the answer must use one; nothing for an application without."""
        if not self.application.tools:
            return {}
        choice = "required" if planned.asks_tool else "none"
        return {"tools": self.application.tools, "tool_choice": choice}


def _answer_message(outcome: Outcome) -> Json:
    message: Json = {"role": "assistant", "content": outcome.text or None}
    if outcome.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in outcome.tool_calls
        ]
    return message


def agent_sessions(shape: WorkloadShape, seed: int) -> list[AgentSession]:
    """Draw the sessions of the built-in workload, ordered by their start."""
    sessions = itertools.islice(endless_sessions(shape, seed), shape.sessions)
    return sorted(sessions, key=lambda session: session.start_s)


def endless_sessions(shape: WorkloadShape, seed: int | str, model: str = MODEL) -> Iterator[AgentSession]:
    """Draw sessions one after the other, for ever; the first ones are those of `agent_sessions`."""
    applications = [_application(shape, seed, number) for number in range(shape.applications)]
    for number in itertools.count():
        yield _session(shape, seed, number, applications, model)


def _session(
    shape: WorkloadShape, seed: int | str, number: int, applications: Sequence[Application], model: str
) -> AgentSession:
    chance = random.Random(f"{seed}/session/{number}")

    def message(median_tokens: int) -> str:
        drawn = median_tokens * chance.lognormvariate(0.0, shape.spread)
        return words(chance, max(8, min(int(drawn), shape.message_tokens_max)))

    plan: list[_PlannedTurn] = []
    after_tool = False
    count = chance.randint(*shape.turns)
    for turn in range(count):
        median = shape.task_tokens if turn == 0 else shape.result_tokens if after_tool else shape.wish_tokens
        think_s = shape.think_s * min(chance.lognormvariate(0.0, 0.6), 5.0) if turn else 0.0
        asks_tool = turn < count - 1 and chance.random() < shape.tool_share
        plan.append(_PlannedTurn(think_s, message(median), chance.randint(*shape.output_tokens), asks_tool))
        after_tool = asks_tool
    start_s = chance.uniform(0.0, shape.start_window_s)
    return AgentSession(start_s, chance.choice(applications), tuple(plan), model)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One row of a trace as a `loadtest.replay.Script` of one completion request.

    Attributes:
        speed: Relative to the recording.
        text: Makes the prompt, when the request is sent and not before.
    """

    row: TraceRequest
    speed: float
    output_tokens_max: int
    text: PromptText = field(repr=False)
    model: str = MODEL

    @property
    def start_s(self) -> float:
        """Seconds since the start of the run."""
        return self.row.arrival_s / self.speed

    @property
    def turn_count(self) -> int:
        """A trace knows no sessions."""
        return 1

    def turns(self) -> Generator[Turn, Outcome, None]:
        """Yield the only request."""
        prompt = self.text.render(self.row)
        body = _encode(
            {
                "model": self.model,
                "prompt": prompt,
                "max_tokens": min(self.row.output_tokens, self.output_tokens_max),
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        yield Turn(0.0, "/v1/completions", body, prompt.encode())
