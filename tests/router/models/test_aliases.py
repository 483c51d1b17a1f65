"""Names that clients may ask for, and the models that serve them."""

import pytest

from router.models.aliases import Aliases, Resolved

ALIASES = Aliases(
    {"claude-*": "mimo", "claude-opus-*": "mimo-pro", "claude-opus-4": "other", "*": "rest", "mimo": "new"},
    {"claude-listed", "mimo-pro"}.__contains__,
)


@pytest.mark.parametrize(
    ("asked", "model", "alias"),
    [
        ("claude-opus-4", "other", "claude-opus-4"),
        ("claude-opus-5", "mimo-pro", "claude-opus-*"),
        ("claude-", "mimo", "claude-*"),
        ("claude-listed", "claude-listed", ""),
        ("mimo-pro", "mimo-pro", ""),
        ("gpt-4o", "rest", "*"),
        ("mimo", "new", "mimo"),
    ],
)
def test_an_exact_name_comes_first_then_the_longest_pattern(asked: str, model: str, alias: str) -> None:
    assert ALIASES.resolve(asked) == Resolved(model, alias)


def test_a_name_without_an_alias_is_itself() -> None:
    assert Aliases({"a": "b"}, lambda _: False).resolve("b") == Resolved("b")


def test_exact_names_are_listed() -> None:
    assert ALIASES.listed() == {"claude-opus-4": "other", "mimo": "new"}
