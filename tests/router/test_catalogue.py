"""The rows: complete, unambiguous, and named as users of the peers expect."""

import pytest

from router.catalogue import CATALOGUE
from router.settings import Settings

PEERS = [
    "--host",
    "--port",
    "--worker-urls",
    "--policy",
    "--pd-disaggregation",
    "--vllm-pd-disaggregation",
    "--prefill",
    "--decode",
    "--prefill-policy",
    "--decode-policy",
    "--kv-connector",
    "--api-key",
    "--request-timeout-secs",
    "--max-concurrent-requests",
    "--max-payload-size",
    "--retry-max-retries",
    "--disable-retries",
    "--cb-failure-threshold",
    "--disable-circuit-breaker",
    "--health-check-interval-secs",
    "--health-check-endpoint",
    "--prometheus-port",
    "--prometheus-host",
    "--request-id-headers",
    "--log-level",
    "--cb-success-threshold",
    "--cb-timeout-duration-secs",
    "--health-failure-threshold",
    "--health-success-threshold",
    "--health-check-timeout-secs",
]


INNER = {
    "server.stall_s_max",
    *("queue.look_s", "queue.ask_s"),
    *("offload.surges", "offload.helps"),
    *("roles.drain_s_max", "roles.reversal_s", "roles.requests_min"),
}
"""Rules that simulations and tests vary, and no operator."""


def test_every_field_of_the_tree_has_a_row() -> None:
    fields = [f"{section}.{name}" for section, part in Settings() for name in vars(part)]
    assert list(CATALOGUE) == [field for field in fields if field not in INNER]
    assert set(fields) > INNER


def test_no_two_settings_share_a_flag_or_a_variable() -> None:
    assert len({row.flag for row in CATALOGUE.values()}) == len(CATALOGUE)
    assert len({row.env for row in CATALOGUE.values()}) == len(CATALOGUE)


@pytest.mark.parametrize("flag", PEERS)
def test_a_flag_of_the_peers_that_means_the_same_keeps_its_name(flag: str) -> None:
    assert flag in {row.flag for row in CATALOGUE.values()}


def test_key_flag_and_variable_follow_from_the_name() -> None:
    row = CATALOGUE["server.request_timeout_s"]
    assert (row.key, row.flag, row.env) == (
        "server.request_timeout_s",
        "--request-timeout-secs",
        "CACHEWAY_REQUEST_TIMEOUT_SECS",
    )
    assert CATALOGUE["placement.prefill_tokens_per_s"].flag == "--prefill-tokens-per-s"


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("server.port", "a whole number, 1 to 65535"),
        ("server.request_timeout_s", "a number, above 0"),
        ("reliability.disable_retries", "true or false"),
        ("observability.log_level", "one of debug, info, warning, error, critical"),
        ("shared.namespace", "1 to 64 letters, digits, '.', '_' or '-'"),
    ],
)
def test_a_row_says_what_its_setting_may_be(key: str, allowed: str) -> None:
    assert CATALOGUE[key].allowed == allowed


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=lambda row: row.key)
def test_every_description_is_a_sentence(row: object) -> None:
    description = CATALOGUE[getattr(row, "key", "")].description
    assert description[0].isupper()
    assert description.endswith(".")
