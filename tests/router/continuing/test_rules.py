"""Which models' streams may be continued."""

from router.continuing.rules import REFUSED_MODELS_MAX, StreamRules
from router.gateway.endpoints import Endpoint
from router.gateway.parsing import Identifier, ParsedRequest
from router.settings import UpstreamSettings


def parsed(model: str = "m", *, stream: bool = True) -> ParsedRequest:
    body = b'{"model":"%b","messages":[],"stream":%b}' % (model.encode(), b"true" if stream else b"false")
    return Identifier(namespace="n").parse(Endpoint.CHAT, body)


def test_only_streams_of_the_models_that_the_setting_names() -> None:
    rules = StreamRules(UpstreamSettings())
    assert rules.keep(parsed())
    assert not rules.keep(parsed(stream=False))
    rules.use(UpstreamSettings(continue_models=("m",)))
    assert (rules.keep(parsed()), rules.keep(parsed("other"))) == (True, False)


def test_a_model_whose_engine_refuses_is_left_alone_until_a_setting_changes() -> None:
    rules = StreamRules(UpstreamSettings())
    for number in range(2 * REFUSED_MODELS_MAX):
        rules.refused(f"m{number}")
    assert not rules.keep(parsed("m0"))
    assert len(rules._refused) == REFUSED_MODELS_MAX
    rules.use(UpstreamSettings())
    assert rules.keep(parsed("m0"))
