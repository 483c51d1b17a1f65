"""Scripts: the choices of a seed, and the relation of each kind of request to those before it."""

from collections import Counter

from loadtest.bench.window_truth.script import KINDS, TOKEN_IDS, Asked, Script

REQUESTS = 400


def drawn(seed: int = 1, answers: int = 0) -> list[tuple[Asked, tuple[int, ...]]]:
    """Requests and their answers, which are the script's own, or all one token."""
    script = Script(seed)
    found = []
    for _ in range(REQUESTS):
        asked = script.draw()
        answer = (answers,) * asked.answer_tokens if answers else script.answer()
        script.answered(answer)
        found.append((asked, answer))
    return found


def test_a_seed_draws_the_same_and_another_one_something_else() -> None:
    assert drawn(1) == drawn(1) != drawn(2)


def test_what_is_answered_changes_no_kind_and_no_length() -> None:
    one, other = drawn(answers=0), drawn(answers=7)

    assert [(asked.kind, len(asked.prompt), asked.answer_tokens) for asked, _ in one] == [
        (asked.kind, len(asked.prompt), asked.answer_tokens) for asked, _ in other
    ]
    assert [asked.prompt for asked, _ in one] != [asked.prompt for asked, _ in other]


def test_all_kinds_come_and_none_is_longer_than_asked_for() -> None:
    found = [asked for asked, _ in drawn()]

    assert Counter(asked.kind for asked in found).keys() == set(KINDS)
    assert all(0 < len(asked.prompt) <= 900 for asked in found)
    assert sum(len(asked.prompt) % 32 == 0 for asked in found) > REQUESTS // 10
    assert all(token in TOKEN_IDS for asked in found for token in asked.prompt)


def test_each_kind_shares_what_its_name_says() -> None:
    """A fork shares less than its prompt; a continuation has prompt and answer of an earlier request."""
    prompts: list[tuple[int, ...]] = []
    both: list[tuple[int, ...]] = []
    for asked, answer in drawn():
        prompt, kind = asked.prompt, asked.kind
        begun = [earlier for earlier in prompts if earlier[:1] == prompt[:1]]
        if kind == "new":
            assert not any(earlier[:8] == prompt[:8] for earlier in prompts) or len(prompt) < 8
        elif kind == "repeat":
            assert prompt in prompts
        elif kind == "extend":
            assert any(prompt[: len(earlier)] == earlier for earlier in prompts)
        elif kind == "continue":
            assert any(prompt[: len(earlier)] == earlier for earlier in both)
        else:
            assert begun
        prompts.append(prompt)
        both.append((*prompt, *answer))


def test_an_answer_that_is_made_up_is_the_same_for_the_same_prompt_however_long() -> None:
    answers: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for asked, answer in drawn():
        answers.setdefault(asked.prompt, []).append(answer)

    repeated = [same for same in answers.values() if len(same) > 1]
    assert repeated
    for same in repeated:
        longest = max(same, key=len)
        assert all(longest[: len(answer)] == answer for answer in same)
