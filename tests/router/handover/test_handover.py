import pytest

from policies import HAND_OVERS
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier
from router.handover import handovers


def test_every_protocol_is_known_by_its_name() -> None:
    protocols = handovers()

    assert set(protocols) == {"sglang", "nixl", "mooncake"}
    assert all(handover.name == name for name, handover in protocols.items())


@pytest.mark.parametrize("name", HAND_OVERS)
@pytest.mark.parametrize("endpoint", Endpoint)
def test_only_what_generates_is_split(name: str, endpoint: Endpoint) -> None:
    """Embeddings, scores and token counts have nothing to decode."""
    body = b'{"model":"m","messages":[],"prompt":"a","input":"a","text":"a"}'
    if handovers()[name].splits(Identifier("test").parse(endpoint, body)):
        assert endpoint in (Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.MESSAGES, Endpoint.GENERATE)


def test_every_protocol_that_decisions_know_is_spoken() -> None:
    assert handovers().keys() == HAND_OVERS.keys()
