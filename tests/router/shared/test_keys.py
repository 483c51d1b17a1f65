"""All keys of a namespace live in one slot, and a namespace cannot break out of its tag."""

import pytest

from router.shared.keys import Keys


def test_every_key_has_the_namespace_as_its_hash_tag() -> None:
    keys = Keys("prod")
    assert keys.log == "cw:{prod}:log"
    for key in (keys.log, keys.snapshot, keys.lease, keys.replicas, keys.replica("a"), keys.pieces("b")):
        assert key.startswith("cw:{prod}:")


@pytest.mark.parametrize("namespace", ["", "a}b", "a b", "x" * 65])
def test_a_namespace_that_would_break_the_tag_is_refused(namespace: str) -> None:
    with pytest.raises(ValueError, match="namespace"):
        Keys(namespace)
