import pytest

from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier
from router.handover import handovers


def test_every_protocol_is_known_by_its_name() -> None:
    protocols = handovers()

    assert set(protocols) == {"sglang", "nixl", "mooncake"}
    assert all(handover.name == name for name, handover in protocols.items())


@pytest.mark.parametrize("name", ["sglang", "nixl", "mooncake"])
@pytest.mark.parametrize("endpoint", Endpoint)
def test_only_what_generates_is_split(name: str, endpoint: Endpoint) -> None:
    """What embeds, scores or counts tokens has nothing to decode."""
    body = b'{"model":"m","messages":[],"prompt":"a","input":"a","text":"a"}'
    if handovers()[name].splits(Identifier("test").parse(endpoint, body)):
        assert endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.MESSAGES, Endpoint.GENERATE)


def test_who_keeps_prefixes_and_who_can_do_without_a_partner() -> None:
    protocols = handovers()

    assert {name: handover.decode_keeps_prefixes for name, handover in protocols.items()} == {
        "sglang": False,
        "nixl": True,
        "mooncake": True,
    }
    assert {name for name, handover in protocols.items() if handover.decode_prefills} == {"nixl", "mooncake"}
    assert {name for name, handover in protocols.items() if handover.concurrent} == {"sglang", "mooncake"}
