import pytest

from loadtest.engine.handover import HandoverSettings


@pytest.mark.parametrize(
    ("connector", "role", "protocol", "part", "listens"),
    [
        ("NixlConnector", "kv_producer", "nixl", "prefill", True),
        ("NixlConnector", "kv_both", "nixl", "both", True),
        ("MooncakeConnector", "kv_consumer", "mooncake", "decode", False),
    ],
)
def test_a_connector_and_a_role_say_the_part(
    connector: str, role: str, protocol: str, part: str, listens: bool
) -> None:
    text = f'{{"kv_connector": "{connector}", "kv_role": "{role}", "kv_buffer_device": "cpu"}}'
    settings = HandoverSettings.parse_transfer_config(text, 5600)

    assert (settings.protocol, settings.part, settings.port) == (protocol, part, 5600)
    assert settings.listens is listens
    assert settings.lease_s == 30


def test_a_lease_and_an_id_may_be_set() -> None:
    text = """{"kv_connector": "NixlConnector", "kv_role": "kv_both", "engine_id": "p0",
               "kv_connector_extra_config": {"kv_lease_duration": 5}}"""
    settings = HandoverSettings.parse_transfer_config(text, 0)

    assert (settings.engine_id, settings.lease_s) == ("p0", 5.0)


@pytest.mark.parametrize(
    "text",
    [
        "NixlConnector",
        '{"kv_connector": "NixlConnector"}',
        '{"kv_connector": "P2pNcclConnector", "kv_role": "kv_both"}',
        '{"kv_connector": "NixlConnector", "kv_role": "producer"}',
        '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}',
        """{"kv_connector": "NixlConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"kv_lease_duration": 0}}""",
    ],
)
def test_what_is_not_modelled_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="kv_transfer_config"):
        HandoverSettings.parse_transfer_config(text, 0)
