from typing import Any

import pytest

from loadtest.engine import intake
from loadtest.engine.errors import RequestRefused
from loadtest.engine.tokens import pack_ids, pack_text

USER = {"role": "user", "content": "hi"}
TOOLS = [{"function": {"name": name, "parameters": {"type": "object"}}} for name in ("first", "second")]


@pytest.mark.parametrize(
    ("prompt", "packed", "batch"),
    [
        ("a", [pack_text("a")], False),
        (["a", "b"], [pack_text("a"), pack_text("b")], True),
        ([1, 2], [pack_ids([1, 2])], False),
        ([[1], [2]], [pack_ids([1]), pack_ids([2])], True),
    ],
)
def test_a_prompt_may_be_text_or_ids_or_lists_of_them(prompt: Any, packed: Any, batch: bool) -> None:
    taken = intake.completion_intake({"prompt": prompt})

    assert (taken.prompts, taken.batch) == (packed, batch)
    assert taken.samplings[0].max_tokens == 16


@pytest.mark.parametrize("prompt", [None, 5, [], "", [""], ["a", 1], [1, "a"], [[]], [[1], "a"], [-1], {}])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestRefused):
        intake.completion_intake({"prompt": prompt})


def test_generate_takes_sampling_parameters_per_prompt() -> None:
    params = [{"max_new_tokens": 5}, {"max_new_tokens": 6, "stop": "x", "ignore_eos": True}]
    taken = intake.generate_intake({"input_ids": [[1], [2]], "sampling_params": params})

    assert [one.max_tokens for one in taken.samplings] == [5, 6]
    assert taken.samplings[1].stop == ("x",)
    assert intake.generate_intake({"text": "x"}).samplings[0].max_tokens == 128


@pytest.mark.parametrize("params", [5, [{}], [{}, 5], [{"n": 1}, {"n": 2}], {"max_new_tokens": -1}])
def test_sampling_parameters_that_do_not_fit_the_prompts_are_refused(params: Any) -> None:
    with pytest.raises(RequestRefused):
        intake.generate_intake({"text": ["a", "b"], "sampling_params": params})


@pytest.mark.parametrize(
    ("choice", "tool"),
    [
        (None, None),
        ("auto", None),
        ("none", None),
        ("required", "first"),
        ({"type": "function", "function": {"name": "second"}}, "second"),
        ({"type": "function", "name": "second"}, "second"),
        ({"type": "tool", "name": "second"}, "second"),
        ({"type": "any"}, "first"),
        ({"type": "auto"}, None),
    ],
)
def test_a_tool_is_called_only_if_the_request_forces_it(choice: Any, tool: Any) -> None:
    body = {"messages": [USER], "tools": TOOLS, "tool_choice": choice}

    assert intake.chat_intake(body).samplings[0].tool == tool


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 0},
        {"max_tokens": "5"},
        {"max_tokens": True},
        {"n": 0},
        {"stop": 5},
        {"stop": [5]},
        {"tools": 5},
        {"tools": TOOLS, "tool_choice": {"function": {"name": "third"}}},
        {"messages": "hi"},
    ],
)
def test_wrong_fields_are_refused(wrong: Any) -> None:
    with pytest.raises(RequestRefused):
        intake.chat_intake({"messages": [USER]} | wrong)


def test_max_completion_tokens_wins_over_its_older_name() -> None:
    body = {"messages": [USER], "max_tokens": 5, "max_completion_tokens": 7, "n": 3}

    assert intake.chat_intake(body).samplings[0].max_tokens == 7
    assert intake.chat_intake(body).samplings[0].n == 3


def test_other_apis_bound_and_stop_answers_in_their_own_words() -> None:
    anthropic = intake.messages_intake({"messages": [USER], "max_tokens": 9, "stop_sequences": ["x"]})

    assert (anthropic.samplings[0].max_tokens, anthropic.samplings[0].stop) == (9, ("x",))
    assert intake.responses_intake({"input": "hi", "max_output_tokens": 9}).samplings[0].max_tokens == 9
    with pytest.raises(RequestRefused):
        intake.responses_intake({"input": 5})


def test_reranking_and_scoring_pair_the_texts() -> None:
    ranked = intake.rerank_intake({"query": "q", "documents": ["a", {"text": "b"}]})

    assert ranked.prompts == intake.score_intake({"text_1": "q", "text_2": ["a", "b"]}).prompts
    assert ranked.prompts == intake.score_intake({"query": ["q", "q"], "items": ["a", "b"]}).prompts
    assert ranked.samplings[0].max_tokens == 0


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (intake.rerank_intake, {"query": "q", "documents": []}),
        (intake.rerank_intake, {"query": "q", "documents": [5]}),
        (intake.rerank_intake, {"documents": ["a"]}),
        (intake.score_intake, {"text_1": "q"}),
        (intake.score_intake, {"text_1": [1], "text_2": ["a"]}),
        (intake.score_intake, {"text_1": ["a", "b"], "text_2": ["a"]}),
        (intake.embedding_intake, {}),
    ],
)
def test_incomplete_pairs_are_refused(read: Any, body: Any) -> None:
    with pytest.raises(RequestRefused):
        read(body)


def test_messages_are_tokenized_with_or_without_an_opening_for_the_answer() -> None:
    opened = intake.tokenize_intake({"messages": [USER]}).prompts[0]
    closed = intake.tokenize_intake({"messages": [USER], "add_generation_prompt": False}).prompts[0]

    assert opened.startswith(closed)
    assert opened != closed


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (intake.completion_intake, {"prompt": "a", "n": 10**16}),
        (intake.completion_intake, {"prompt": "a", "max_tokens": 10**18}),
        (intake.completion_intake, {"prompt": ["a"] * 200, "n": 100}),
        (intake.chat_intake, {"messages": [USER], "n": 10**400}),
        (intake.generate_intake, {"text": "a", "sampling_params": {"n": 10**16}}),
        (intake.generate_intake, {"text": "a", "sampling_params": {"max_new_tokens": 10**18}}),
        (intake.generate_intake, {"text": ["a"] * 20_000}),
    ],
)
def test_more_answers_or_tokens_than_engines_give_are_refused(read: Any, body: Any) -> None:
    """``n`` of 10**16 made the emulator hang at 2.6 GB."""
    with pytest.raises(RequestRefused):
        read(body)
