"""The tree itself: that it is frozen, closed, and refuses what no single value shows to be wrong."""

import pytest
from pydantic import ValidationError

from policies import POLICIES
from router.settings import AttentionSettings, PlacementSettings, ServerSettings, Settings, UpstreamSettings


def test_every_default_is_a_valid_value() -> None:
    """Defaults are validated too (`validate_default`), so building the tree is the test."""
    assert Settings().server.port == 30000


def test_settings_cannot_be_changed_after_the_start() -> None:
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.server.port = 1


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"server": {"prot": 1}})


@pytest.mark.parametrize("policy", POLICIES)
def test_every_registered_policy_can_be_chosen(policy: str) -> None:
    assert PlacementSettings(policy=policy).policy == policy


def test_an_option_that_the_policy_does_not_have_is_refused() -> None:
    with pytest.raises(ValidationError, match="has no option"):
        PlacementSettings(policy="round_robin", policy_options={"match_weight": 1.0})


def test_certificate_and_key_are_given_together_or_not_at_all() -> None:
    assert ServerSettings(ssl_certfile="c.pem", ssl_keyfile="k.pem").ssl_keyfile == "k.pem"
    with pytest.raises(ValidationError, match="together"):
        ServerSettings(ssl_certfile="c.pem")


def test_a_client_key_without_its_certificate_is_refused() -> None:
    assert UpstreamSettings(client_cert="both.pem").client_key == ""
    with pytest.raises(ValidationError, match="needs client_cert"):
        UpstreamSettings(client_key="k.pem")


def test_the_target_backlog_is_within_its_own_bound() -> None:
    with pytest.raises(ValidationError, match="must not be below"):
        Settings.model_validate({"admission": {"backlog_target_s": 5, "backlog_target_s_max": 4}})


def test_a_window_belongs_to_sliding_window_attention_only() -> None:
    assert AttentionSettings(attention="sliding_window", window_tokens=128).window_tokens == 128
    with pytest.raises(ValidationError, match="window_tokens"):
        AttentionSettings(attention="sliding_window")
    with pytest.raises(ValidationError, match="window_tokens"):
        AttentionSettings(attention="full", window_tokens=128)


def test_a_secret_does_not_show_when_the_tree_is_printed() -> None:
    settings = Settings.model_validate({"server": {"api_key": "hunter2"}})
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("classes", "default", "sentence"),
    [
        ({"a": 1}, "b", "default_class must be one of a"),
        ({}, "normal", "default_class must be one of the classes"),
        ({"a": 0}, "a", "must be above 0"),
        ({"a/b": 1}, "a/b", "is no name"),
        ({"High": 1}, "High", "is no name"),
    ],
)
def test_classes_of_requests_have_names_and_shares(
    classes: dict[str, float], default: str, sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Settings.model_validate({"queue": {"classes": classes, "default_class": default}})


def test_bounds_of_length_buckets_ascend_and_are_tokens_as_people_write_them() -> None:
    assert PlacementSettings().length_buckets == ("64K", "256K", "1M")
    assert PlacementSettings.model_validate({"length_buckets": [32768, "1M"]}).length_buckets == (
        "32768",
        "1M",
    )
    for bounds, says in ((["64K", "32K"], "ascend"), ([], "ascend"), (["64KB"], "write 65536 or 64K")):
        with pytest.raises(ValidationError, match=says):
            PlacementSettings.model_validate({"length_buckets": bounds})
