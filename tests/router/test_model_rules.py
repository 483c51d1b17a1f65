"""Settings of models: what is no alias is refused in words."""

from typing import Any

import pytest
from pydantic import ValidationError

from router.settings import Settings


@pytest.mark.parametrize(
    ("aliases", "why"),
    [
        ({"a*b": "m"}, "a * may stand at its end only"),
        ({"": "m"}, "no name of a model"),
        ({"a": ""}, "no name of a model"),
        ({"a": "m*"}, "no name of a model"),
        ({"a\n": "m"}, "no name of a model"),
        ({"a" * 300: "m"}, "no name of a model"),
        ({str(number): "m" for number in range(1001)}, "more than 1000"),
    ],
)
def test_what_is_no_alias_is_refused(aliases: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why.replace("*", r"\*")):
        Settings.model_validate({"models": {"aliases": aliases}})


@pytest.mark.parametrize("aliases", [{}, {"*": "m"}, {"claude-*": "org/mimo:v2"}])
def test_aliases_are_taken(aliases: dict[str, Any]) -> None:
    assert Settings.model_validate({"models": {"aliases": aliases}}).models.aliases == aliases


@pytest.mark.parametrize(
    ("split", "why"),
    [
        ({"ratio": 1.5, "label": "a=b"}, "less than or equal to 1"),
        ({"ratio": float("nan"), "label": "a=b"}, "finite|nan|greater"),
        ({"ratio": 0.1}, "either label or model"),
        ({"label": "a=b", "model": "x"}, "either label or model"),
        ({"label": "a"}, "no KEY=VALUE"),
        ({"model": "x*"}, "no name of a model"),
        ({"model": "m"}, "its own canary"),
        ({"label": "a=b", "stick": "moon"}, "prefix"),
        ({"label": "a=b", "share": 1}, "share|[Uu]nexpected"),
    ],
)
def test_what_is_no_split_is_refused(split: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Settings.model_validate({"models": {"splits": {"m": split}}})


@pytest.mark.parametrize(
    "adapters",
    [
        {"a": {"path": "/a"}},
        {"a": {"base": "m"}},
        {"a": {"path": "/a\n", "base": "m"}},
        {"a": {"path": "x" * 2000, "base": "m"}},
        {"m": {"path": "/a", "base": "m"}},
        {"a*": {"path": "/a", "base": "m"}},
        {"a": {"path": "/a", "base": "m", "workers": 0}},
        {str(number): {"path": "/a", "base": "m"} for number in range(1001)},
    ],
)
def test_what_is_no_adapter_is_refused(adapters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"models": {"adapters": adapters}})
