from collections import Counter

import orjson
import pytest

from router.errors import ClientError
from router.picker.intents import PRIORITY_MAX, Intents, targets_of
from router.settings import Settings

OBJECTIVE, FAIRNESS = b"x-gateway-inference-objective", b"x-gateway-inference-fairness-id"


def intents(**queue: object) -> Intents:
    return Intents(Settings.model_validate({"queue": queue}))


@pytest.mark.parametrize("name", [OBJECTIVE, b"x-llm-d-inference-objective"])
@pytest.mark.parametrize(
    ("priority", "low_first", "number"),
    [(10, False, b"10"), (10, True, b"-10"), (-1, False, b"-1"), (10**9, False, b"%d" % PRIORITY_MAX)],
)
def test_an_objective_is_a_number_of_classes(
    name: bytes, priority: int, low_first: bool, number: bytes
) -> None:
    found = intents(low_values_first=low_first)
    found.objectives = {"urgent": priority}
    assert list(found.headers([(name, b"urgent")])) == [(b"x-priority", number), (name, b"urgent")]


def test_an_unknown_objective_is_the_default_class() -> None:
    """As the reference picker has it; what the client itself asks for does not count beside it."""
    headers = [(OBJECTIVE, b"nobody"), (b"x-priority", b"5")]
    assert intents().headers(headers)[0] == (b"x-priority", b"0")


def test_requests_without_intents_keep_their_headers() -> None:
    headers = [(b"content-type", b"application/json")]
    assert intents().headers(headers) is headers


def test_the_fairness_id_is_the_tenant_unless_a_header_names_one() -> None:
    assert (b"x-tenant-id", b"team") in intents().headers([(FAIRNESS, b"team")])
    both = [(FAIRNESS, b"team"), (b"x-tenant-id", b"other")]
    assert list(intents().headers(both)) == both


def test_a_body_without_rewrites_is_not_read() -> None:
    assert intents().rewritten([], b"{broken") == (b"{broken", None)


def test_a_header_rewrites_the_model_in_place() -> None:
    body = b'{"a": [1,2], "model": "m\\u0061",  "b": {"model": "inner"}}'
    new, names = intents().rewritten([(b"x-gateway-model-name-rewrite", b'ser"ved')], body)
    assert new == b'{"a": [1,2], "model": "ser\\"ved",  "b": {"model": "inner"}}'
    assert names == (b'"ser\\"ved"', b'"ma"')


def test_all_members_of_the_name_are_rewritten() -> None:
    """Engines take the last one; other readers may not."""
    new, _ = intents().rewritten([(b"x-llm-d-model-name-rewrite", b"s")], b'{"model":"a","model":"b"}')
    assert new == b'{"model":"s","model":"s"}'


@pytest.mark.parametrize("body", [b"", b"[]", b"{broken", b'{"model": 1}', b'{"x": 1}', b"\xff", b"[" * 5000])
def test_a_body_that_cannot_be_rewritten_passes(body: bytes) -> None:
    assert intents().rewritten([(b"x-gateway-model-name-rewrite", b"s")], body) == (body, None)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ClientError):
        intents().rewritten([(b"x-gateway-model-name-rewrite", b"s" * 300)], b"{}")


def test_rules_choose_by_model_then_for_all_others() -> None:
    found = intents()
    found.rewrites, found.otherwise = {"a": targets_of([("one", 1)])}, targets_of([("two", 1)])

    def served(model: str) -> str:
        body, _ = found.rewritten([], orjson.dumps({"model": model}))
        return str(orjson.loads(body)["model"])

    assert [served("a"), served("b"), served("two")] == ["one", "two", "two"]
    found.otherwise = None
    assert served("b") == "b"


def test_targets_share_by_weight_and_equally_if_one_has_none() -> None:
    """9 to 1 of 2,000: the standard deviation is 13, and 150 is beyond eleven of them."""
    weighted = targets_of([("a", 9), ("b", 1)])
    counts = Counter(weighted.choose() for _ in range(2000))
    assert 50 < counts["b"] < 350
    assert targets_of([("a", 9), ("b", 0)]) == targets_of([("a", 1), ("b", 1)])


def test_new_settings_turn_the_sign_of_priorities() -> None:
    found = intents()
    found.objectives = {"o": 2}
    found.use(Settings.model_validate({"queue": {"low_values_first": True}}))
    assert found.headers([(OBJECTIVE, b"o")])[0] == (b"x-priority", b"-2")
