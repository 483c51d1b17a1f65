from typing import Any

import pytest

from loadtest.engine.outputs import Sampling, choose_output
from loadtest.engine.template import BadPrompt, anthropic_messages, render_chat, responses_messages
from loadtest.engine.tokens import TOKEN_BYTES

USER = {"role": "user", "content": "What is the weather in Rome?"}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_every_prompt_is_a_prefix_of_the_next_turn_with_its_answer() -> None:
    prompt = render_chat([USER], None)
    output = choose_output(prompt, 0, Sampling(), 50, 1000)
    turn = render_chat([USER, {"role": "assistant", "content": output.text}, USER], None)

    assert turn.startswith(prompt + output.kept)


def test_a_tool_call_is_found_again_in_the_next_turn() -> None:
    prompt = render_chat([USER], TOOLS)
    output = choose_output(prompt, 0, Sampling(tool="weather", parameters={}), 50, 1000)
    call = {"id": "1", "type": "function", "function": {"name": output.tool, "arguments": output.text}}
    turn = render_chat([USER, {"role": "assistant", "content": None, "tool_calls": [call]}], TOOLS)

    assert turn.startswith(prompt + output.kept)


def test_text_as_a_string_and_as_parts_is_the_same_prompt() -> None:
    parts = [{"type": "text", "text": "What is the "}, {"type": "text", "text": "weather in Rome?"}]

    assert render_chat([USER | {"content": parts}], None) == render_chat([USER], None)


def test_the_key_order_of_tools_does_not_matter_but_their_content_does() -> None:
    turned = [dict(reversed(TOOLS[0].items()))]

    assert render_chat([USER], turned) == render_chat([USER], TOOLS)
    assert render_chat([USER], TOOLS) != render_chat([USER], None)


def test_media_are_told_apart_by_what_they_point_to() -> None:
    def image(url: Any) -> Any:
        return render_chat(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}], None
        )

    assert image("http://a") == image("http://a")
    assert image("http://a") != image("http://b")
    assert (
        len(image("http://a")) - len(render_chat([{"role": "user", "content": []}], None)) == 64 * TOKEN_BYTES
    )


def test_text_cannot_pose_as_a_mark() -> None:
    """A mark begins with 0xFF, which no UTF-8 text holds: two marks and an end, two for the answer."""
    prompt = render_chat([{"role": "user", "content": "a\xff\x00\x00\x03b"}], None)

    assert prompt.count(b"\xff") == 5


def test_the_three_chat_apis_render_a_conversation_alike() -> None:
    chat = [{"role": "system", "content": "Be brief."}, USER]
    anthropic = {"system": [{"type": "text", "text": "Be brief."}], "messages": [USER]}
    responses = {"instructions": "Be brief.", "input": [{"role": "user", "content": USER["content"]}]}

    assert render_chat(anthropic_messages(anthropic), None) == render_chat(chat, None)
    assert render_chat(responses_messages(responses), None) == render_chat(chat, None)
    assert render_chat(responses_messages({"input": USER["content"]}), None) == render_chat([USER], None)


def test_tool_turns_of_all_three_apis_render_alike() -> None:
    chat = [
        USER,
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "weather", "arguments": '{"city":"Rome"}'}}],
        },
    ]
    anthropic = [
        USER,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "name": "weather", "input": {"city": "Rome"}}],
        },
    ]
    responses = [USER, {"type": "function_call", "name": "weather", "arguments": '{"city":"Rome"}'}]

    assert render_chat(anthropic, None) == render_chat(chat, None)
    assert render_chat(responses_messages({"input": responses}), None) == render_chat(chat, None)


def test_tool_results_are_part_of_the_prompt() -> None:
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "content": [{"type": "text", "text": "sunny"}]}],
    }
    output = {"type": "function_call_output", "output": "sunny"}

    assert b"sunny" in render_chat([result], None)
    assert b"sunny" in render_chat(responses_messages({"input": [output]}), None)


@pytest.mark.parametrize(
    "messages", [None, [], "hi", [1], [{"content": "x"}], [USER | {"content": 5}], [USER | {"content": [5]}]]
)
def test_what_is_no_conversation_is_refused(messages: Any) -> None:
    with pytest.raises(BadPrompt):
        render_chat(messages, None)


@pytest.mark.parametrize("given", [None, 5, ["x"]])
def test_what_is_no_input_is_refused(given: Any) -> None:
    with pytest.raises(BadPrompt):
        responses_messages({"input": given})
