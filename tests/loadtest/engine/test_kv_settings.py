from typing import Any

import pytest

from loadtest.engine.kv_settings import KvEventsSettings


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ('{"enable_kv_cache_events": true}', True),
        ('{"publisher": "zmq"}', True),
        ('{"enable_kv_cache_events": true, "publisher": "zmq"}', True),
        ("{}", False),
        ('{"publisher": "null"}', False),
        ('{"enable_kv_cache_events": true, "publisher": "null"}', False),
        ('{"enable_kv_cache_events": false, "publisher": "zmq"}', False),
    ],
)
def test_each_engine_has_its_own_word_for_on(text: str, on: bool) -> None:
    assert KvEventsSettings.parse(text) == (KvEventsSettings() if on else None)


@pytest.mark.parametrize(
    "text",
    [
        "zmq",
        "[]",
        '{"publisher": "kafka"}',
        '{"publisher": "zmq", "endpont": "tcp://*:1"}',
        '{"publisher": "zmq", "endpoint": "127.0.0.1:5557"}',
        '{"publisher": "zmq", "replay_endpoint": "tcp://*"}',
        '{"publisher": "zmq", "buffer_steps": -1}',
        '{"publisher": "zmq", "hwm": "many"}',
    ],
)
def test_what_no_engine_would_take_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="kv_events_config"):
        KvEventsSettings.parse(text)


@pytest.mark.parametrize(
    ("endpoint", "third"),
    [
        ("tcp://*:5557", "tcp://*:5559"),
        ("tcp://*:0", "tcp://*:0"),
        ("tcp://[::]:5557", "tcp://[::]:5559"),
        ("ipc:///tmp/kv", "ipc:///tmp/kv_dp2"),
    ],
)
def test_each_rank_has_an_endpoint_of_its_own(endpoint: str, third: str) -> None:
    settings = KvEventsSettings(endpoint, endpoint)

    assert settings.shifted(2) == KvEventsSettings(third, third)
    assert settings.shifted(0) == settings
    assert KvEventsSettings(endpoint).shifted(2).replay_endpoint is None


def test_engines_advertise_what_routers_look_for() -> None:
    text = (
        '{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:6557", "topic": "kv"}'
    )
    settings = KvEventsSettings.parse(text)
    assert settings is not None
    vllm: dict[str, Any] = settings.vllm_source()

    assert vllm["endpoint"] == "tcp://*:5557"
    assert vllm["replay_endpoint"] == "tcp://*:6557"
    assert vllm["enable_kv_cache_events"] is True
    assert settings.sglang_source(64, 8) == {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "topic": "kv",
        "block_size": 64,
        "dp_size": 8,
    }
    assert KvEventsSettings("ipc:///tmp/kv").sglang_source(64, 8) is None
