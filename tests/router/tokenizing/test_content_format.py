"""Verdicts of vLLM 0.32's own rule on the same templates."""

import pytest
from jinja2 import Environment

from router.tokenizing.content_format import takes_parts

EACH = "{% for m in messages %}"
SHOW = "{% macro show(x) %}{% for c in x %}{{ c }}{% endfor %}{% endmacro %}"

PARTS = [
    EACH + "{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}",
    EACH + "{% for c in m.content | list %}{{ c }}{% endfor %}{% endfor %}",
    "{% set t = messages %}{% for m in t[1:] %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
    EACH + "{% set content = m.content %}{% for c in content %}{{ c }}{% endfor %}{% endfor %}",
    SHOW + EACH + "{{ show(m.content) }}{% endfor %}",
    SHOW + EACH + "{{ show(x=m['content']) }}{% endfor %}",
]
TEXTS = [
    "{{ messages[0].content }}",
    EACH + "{{ m.content }}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}",
    "{% for m in others %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
    "{% macro show(content) %}{% for c in content %}{{ c }}{% endfor %}{% endmacro %}{{ messages[0] }}",
    SHOW + EACH + "{{ show(m.name) }}{% endfor %}",
    "{% for i, m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
]


@pytest.mark.parametrize("source", PARTS)
def test_a_loop_over_content_takes_parts(source: str) -> None:
    assert takes_parts(Environment().parse(source))


@pytest.mark.parametrize("source", TEXTS)
def test_all_else_takes_text(source: str) -> None:
    assert not takes_parts(Environment().parse(source))
