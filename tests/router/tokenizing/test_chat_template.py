from typing import Any

import pytest
from jinja2 import TemplateError

from router.tokenizing.chat_template import ChatTemplate
from router.tokenizing.refusal import Cause, NotTokenized

LINES = "{% for m in messages %}\n  {{ m.role }}: {{ m.content }}\n{% endfor %}\n"


def render(source: str, *messages: dict[str, Any], **more: Any) -> str:
    given: dict[str, Any] = {
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "values": {},
        **more,
    }
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages or [user("hi")], **given)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_blocks_are_trimmed_as_transformers_does() -> None:
    assert render(LINES, user("a"), user("b")) == "  user: a\n  user: b\n"


def test_json_is_written_as_it_reads() -> None:
    value = {"b": "é<&>'", "a": [1.0, None]}
    assert render("{{ tools[0] | tojson }}", tools=[value]) == '{"b": "é<&>\'", "a": [1.0, null]}'
    assert render("{{ tools[0] | tojson(indent=1, sort_keys=true) }}", tools=[{"b": 1, "a": 2}]) == (
        '{\n "a": 2,\n "b": 1\n}'
    )


def test_special_tokens_and_values_are_there_and_values_win() -> None:
    assert render("{{ bos_token }}{{ x }}{{ y is defined }}", values={"x": 1}) == "<s>1False"
    assert render("{{ bos_token }}", values={"bos_token": "B"}) == "B"


def test_loops_may_break_and_generations_are_shown() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}"
    )
    assert render(source, user("a"), user("b")) == "a"


def test_a_template_says_the_day() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).tells_time
    assert not ChatTemplate("x", {}).tells_time


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('secret of a prompt') }}",
        "{{ messages[9].role }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ 1 // 0 }}",
        "{{ messages | tojson(indent='x' * messages) }}",
    ],
)
def test_what_a_template_refuses_or_must_not_do_is_told_without_the_prompt(source: str) -> None:
    with pytest.raises(NotTokenized) as caught:
        render(source)
    assert caught.value.cause is Cause.FAILED
    assert "secret" not in caught.value.detail


def test_what_is_no_template_is_refused_at_once() -> None:
    with pytest.raises(TemplateError):
        ChatTemplate("{% for %}", {})


# A message that the model is to go on with.


def continued(source: str, *messages: dict[str, Any]) -> str:
    return render(source, *messages, add_generation_prompt=False, continue_final_message=True)


def test_the_last_message_stays_open() -> None:
    source = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert continued(source, user("a"), user("b ")) == "<a><b "
    assert continued("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", user("b  ")) == "<b"
    assert continued("{% for m in messages %}<{{ m.content | trim }}\n>{% endfor %}", user(" b ")) == "<b"


def test_the_last_text_of_parts_stays_open() -> None:
    source = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]
    assert continued(source, user(parts)) == "[a][b"
    assert parts[1]["text"] == "b"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ messages | length }}content", user("a")),
        ("{{ messages[0].content | upper }}", user("ab")),
        ("{{ messages[0].role }}", user("a")),
        ("{{ messages[0].content }}", user(None)),
        ("{{ messages[0].content }}", user([])),
    ],
)
def test_what_cannot_be_continued_is_refused(source: str, message: dict[str, Any]) -> None:
    with pytest.raises(NotTokenized):
        continued(source, message)


def test_nothing_to_answer_and_contradictions_are_refused() -> None:
    with pytest.raises(NotTokenized):
        ChatTemplate("", {}).render(
            [], None, None, add_generation_prompt=True, continue_final_message=False, values={}
        )
    with pytest.raises(NotTokenized):
        render("{{ messages[0].content }}", continue_final_message=True)
