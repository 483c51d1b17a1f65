"""The load: the same bytes for every arm, prefixes that grow, and forks now and then."""

import itertools
import json
from dataclasses import replace
from typing import Any

from loadtest.bench.ablation.conversations import WORDS, Agent, Shape, agents, ideal_ratio

SHAPE = Shape(agents=6, conversations=2, turns=(4, 8), fork_ratio=0.5)


def prompts(agent: Agent) -> list[list[dict[str, Any]]]:
    return [json.loads(turn.body)["messages"] for turn in agent.planned]


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert agents(SHAPE, 3, "m", 1.0) == agents(SHAPE, 3, "m", 1.0)
    assert agents(SHAPE, 3, "m", 1.0) != agents(SHAPE, 4, "m", 1.0)


def test_what_is_asked_does_not_depend_on_what_was_answered() -> None:
    agent = agents(SHAPE, 3, "m", 1.0)[0]
    turns = agent.turns()
    asked = [next(turns), *(turns.send(None) for _ in agent.planned[1:])]  # type: ignore[arg-type]

    assert tuple(asked) == agent.planned
    assert agent.turn_count == len(asked)


def test_a_turn_adds_an_answer_and_a_result_or_goes_back_to_an_earlier_answer() -> None:
    """Half of the turns fork here, so both happen."""
    grown = forked = 0
    for agent in agents(SHAPE, 3, "m", 1.0):
        for before, after in itertools.pairwise(prompts(agent)):
            assert [message["role"] for message in after[:2]] == ["system", "user"]
            assert [message["role"] for message in after[2:]] == ["assistant", "tool"] * (len(after) // 2 - 1)
            if len(after) == 2:
                continue  # the next conversation
            if after[: len(before)] == before:
                assert len(after) == len(before) + 2
                grown += 1
            else:
                assert after[:-1] == before[: len(after) - 1]
                assert after[-1] != before[len(after) - 1]
                forked += 1
    assert grown > 10
    assert forked > 10


def test_agents_share_a_few_system_prompts() -> None:
    systems = {messages[0]["content"] for agent in agents(SHAPE, 3, "m", 1.0) for messages in prompts(agent)}

    assert 1 < len(systems) <= SHAPE.applications


def test_lengths_are_in_tokens_of_the_model() -> None:
    """If the model makes two tokens of a word, prompts of the same tokens have half as many words."""
    shape = replace(SHAPE, system_tokens=(1000, 1000), prompt_tokens_max=4000)
    for tokens_per_word in (1.0, 2.0):
        for agent in agents(shape, 3, "m", tokens_per_word):
            for messages in prompts(agent):
                counts = [len(message["content"].split()) for message in messages]
                assert counts[0] == 1000 / tokens_per_word
                assert sum(counts) * tokens_per_word <= 4000 + len(messages)


def test_an_infinite_cache_reuses_what_is_repeated_and_nothing_else() -> None:
    once = replace(SHAPE, agents=1, conversations=1, turns=(1, 1))
    (alone,) = agents(once, 3, "m", 1.0)
    assert ideal_ratio([alone], 32) == 0.0
    assert 0.98 < ideal_ratio([alone, alone, alone, alone], 32) / 0.75 <= 1.0


def test_words_have_four_bytes_with_their_space() -> None:
    assert 3.9 < sum(len(word) + 1 for word in WORDS) / len(WORDS) < 4.6
