"""Rules of discovery, as an operator writes them."""

import pytest
from pydantic import ValidationError

from router.settings import DiscoverySettings


def test_equal_selectors_look_equal() -> None:
    one = DiscoverySettings(selector=("b=2", "a=1"), ports=("8000", "http"))
    other = DiscoverySettings(selector={"a": "1", "b": "2"}, ports=[8000, "http"])
    assert one.selectors == other.selectors == {"": "a=1,b=2"}
    assert one.ports == other.ports


@pytest.mark.parametrize("ports", [["0"], [70000], ["no_port"], ["12345678901234567"]])
def test_a_port_is_a_number_or_the_name_of_a_container_port(ports: list[object]) -> None:
    with pytest.raises(ValidationError, match="neither a port"):
        DiscoverySettings(ports=ports)


def test_all_namespaces_stand_alone() -> None:
    assert DiscoverySettings(namespaces=("*",)).namespaces == ("*",)
    with pytest.raises(ValidationError, match="give it alone"):
        DiscoverySettings(namespaces=("*", "a"))


def test_discovery_needs_a_selector() -> None:
    with pytest.raises(ValidationError, match="needs the labels of the workers"):
        DiscoverySettings(service_discovery=True)
