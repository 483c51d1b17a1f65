"""Label selectors, in any notation."""

import pytest
from pydantic import TypeAdapter, ValidationError

from router.label_selectors import Selector, requirements

read = TypeAdapter(Selector).validate_python


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("app=sglang", ("app=sglang",)),
        ("app == sglang", ("app=sglang",)),
        ("app=sglang,tier!=batch", ("app=sglang", "tier!=batch")),
        ("app=sglang tier=inference app=sglang", ("app=sglang", "tier=inference")),
        ("gpu !canary", ("gpu", "!canary")),
        ("! canary", ("!canary",)),
        ("app in (vllm, sglang)", ("app in (sglang,vllm)",)),
        ("app notin (a),b=", ("app notin (a)", "b=")),
        ("llm-d.ai/role=decode", ("llm-d.ai/role=decode",)),
        ("leaderworkerset.sigs.k8s.io/worker-index=0", ("leaderworkerset.sigs.k8s.io/worker-index=0",)),
        ("in=in", ("in=in",)),
    ],
)
def test_requirements_are_kept_in_one_form(text: str, found: tuple[str, ...]) -> None:
    assert requirements(text) == found
    assert requirements(",".join(found)) == found


@pytest.mark.parametrize(
    "text",
    ["=a", "a=b=c", "a in b", "a in ()", "a in (b", "a=b;c=d", "-a", "a=-b", "a/b/c=d", "a=b!c", "a>1"],
)
def test_what_kubernetes_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write KEY"):
        requirements(text)


@pytest.mark.parametrize(
    "given",
    [
        ["app=a", "part in (p,d)"],
        ["app=a", "part", "in", "(p", "d)"],
        "app=a,part in (p,d)",
        ("app=a part in (d, p)",),
    ],
)
def test_words_may_have_been_taken_apart(given: object) -> None:
    """A flag's words and the environment's are split at spaces and commas."""
    assert read(given) == ("app=a", "part in (d,p)")


def test_a_mapping_is_equalities() -> None:
    assert read({"app": "a", "part": "p"}) == ("app=a", "part=p")


def test_what_is_no_text_is_no_selector() -> None:
    with pytest.raises(ValidationError):
        read([1])
