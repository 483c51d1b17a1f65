"""How urgent a client says that its request is."""

import pytest

from router.errors import ClientError
from router.gateway.priorities import Priorities, weights

THREE = Priorities(("high", "normal", "low"), "normal", low_first=False)
FIVE = Priorities(("now", "soon", "normal", "flex", "night"), "normal", low_first=False)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b"high", "high"),
        (b" High ", "high"),
        (b"low", "low"),
        (b"0", "normal"),
        (b"1", "high"),
        (b"+7", "high"),
        (b"-1", "low"),
        (b"-100", "low"),
    ],
)
def test_the_header_names_a_class_or_counts_from_the_default(value: bytes, name: str) -> None:
    assert THREE.named(value) == name


@pytest.mark.parametrize("value", [b"", b"urgent", b"1.5", b"high,low", b"\xb2", b"1_0", b"9" * 5000, b"--1"])
def test_a_header_that_names_no_class_is_the_clients_mistake(value: bytes) -> None:
    with pytest.raises(ClientError, match="x-priority") as raised:
        THREE.named(value)
    assert (raised.value.status, raised.value.code, raised.value.param) == (
        400,
        "invalid_value",
        "x-priority",
    )
    assert len(raised.value.message) < 300


@pytest.mark.parametrize(
    ("number", "tier", "name"),
    [
        (0, "", "normal"),
        (1, "", "soon"),
        (2, "", "now"),
        (3, "", "now"),
        (-1, "", "flex"),
        (-2, "", "night"),
        (0, "priority", "soon"),
        (0, "auto", "normal"),
        (0, "standard_only", "normal"),
        (0, "batch", "flex"),
        (0, "something new", "normal"),
        (0, "night", "night"),
        (0, "flex", "flex"),
        (1, "night", "soon"),
    ],
)
def test_a_body_counts_from_the_default_or_names_a_tier(number: int, tier: str, name: str) -> None:
    assert FIVE.stated(number, tier) == name


def test_lower_numbers_may_be_the_more_urgent_ones() -> None:
    vllm = Priorities(("high", "normal", "low"), "normal", low_first=True)
    assert [vllm.stated(number, "") for number in (-1, 0, 1)] == ["high", "normal", "low"]
    assert [vllm.named(value) for value in (b"-1", b"0", b"1")] == ["high", "normal", "low"]
    assert vllm.stated(0, "priority") == "high"


def test_classes_weigh_what_the_settings_say_and_tenants_the_same() -> None:
    weight_of = weights({"high": 8.0, "low": 0.5})
    assert [weight_of(name) for name in ("high", "low", "unknown", "low/", "high/a/b")] == [
        8.0,
        0.5,
        0.5,
        1.0,
        1.0,
    ]


def test_a_tenant_weighs_the_same_in_every_class() -> None:
    weight_of = weights({"high": 8.0, "low": 0.5}, {"acme": 3.0}.__getitem__)
    assert [weight_of("high/acme"), weight_of("low/acme")] == [3.0, 3.0]
