"""Models in queries: read strictly, and replaced alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from router.errors import ClientError
from router.relaying.model_query import FIELDS_MAX, ModelQuery


@pytest.mark.parametrize(
    ("query", "model", "renamed"),
    [
        (b"", None, b""),
        (b"models=a&x", None, b"models=a&x"),
        (b"model=", None, b"model="),
        (b"model=a", "a", b"model=m%3Ab%20c"),
        (b"x=1&mode%6c=a%20+b&y=%zz", "a  b", b"x=1&model=m%3Ab%20c&y=%zz"),
    ],
)
def test_the_model_is_found_and_replaced(query: bytes, model: str | None, renamed: bytes) -> None:
    found = ModelQuery(query)
    assert found.model == model
    assert found.renamed("m:b c") == renamed
    assert found.renamed(model) == found.renamed(None) == query


@pytest.mark.parametrize(
    "query",
    [
        b"model=a&model=b",
        b"model=a&%6dodel=b",
        b"model=%ff",
        b"model=" + b"m" * 2000,
        b"&".join([b"x"] * (FIELDS_MAX + 1)),
        b"x" * 9000,
    ],
)
def test_what_engines_could_read_otherwise_is_refused(query: bytes) -> None:
    with pytest.raises(ClientError):
        ModelQuery(query)


@given(st.text(st.sampled_from("model=&%6fde+;a\u00e9"), max_size=40))
def test_engines_read_the_same_model(text: str) -> None:
    query = text.encode()
    try:
        found = ModelQuery(query)
    except ClientError:
        return
    assert (QueryParams(query.decode("latin-1")).get("model") or None) == found.model
