import pytest

from router.errors import ClientError
from router.gateway.bodies import ABSENT, SCOPE_FIELDS, ChatBody, CompletionBody, GenerateBody, decode
from router.gateway.conversation import Turn
from router.gateway.endpoints import Endpoint


def test_a_usual_body_is_decoded_into_the_struct_of_its_endpoint() -> None:
    body = decode(Endpoint.CHAT, b'{"model":"m","messages":[{"role":"user","content":"hi"}],"unknown":[1]}')

    assert isinstance(body, ChatBody)
    assert body.messages == [Turn(role="user", content="hi")]
    assert body.tools is ABSENT


def test_an_unusual_body_keeps_what_is_known_of_it() -> None:
    body = decode(
        Endpoint.CHAT, b'{"model":"m","stream":"true","messages":[7,{"role":"user","content":"hi"}]}'
    )

    assert isinstance(body, ChatBody)
    assert body.stream is True
    assert body.messages is not None
    assert body.messages[1] == Turn(role="user", content="hi")


def test_prompts_of_unknown_shape_become_a_hash() -> None:
    body = decode(Endpoint.COMPLETIONS, b'{"prompt":["x",[1,2],{"odd":1}]}')

    assert isinstance(body, CompletionBody)
    assert isinstance(body.prompt, list)
    assert body.prompt[:2] == ["x", [1, 2]]
    assert isinstance(body.prompt[2], bytes)
    assert len(body.prompt[2]) == 17


def test_a_wrong_scalar_is_named() -> None:
    with pytest.raises(ClientError) as caught:
        decode(Endpoint.GENERATE, b'{"sampling_params":{"max_new_tokens":"many"}}')

    assert (caught.value.code, caught.value.param) == ("invalid_value", "sampling_params.max_new_tokens")


@pytest.mark.parametrize("endpoint", Endpoint)
def test_every_endpoint_has_a_body_and_tools_never_separate_identities(endpoint: Endpoint) -> None:
    """Tools are at the start of the stream, where a common part of them can still be shared."""
    assert not {"tools", "functions"} & set(SCOPE_FIELDS[type(decode(endpoint, b"{}"))])


def test_images_of_generate_separate_identities() -> None:
    assert "image_data" in SCOPE_FIELDS[GenerateBody]
