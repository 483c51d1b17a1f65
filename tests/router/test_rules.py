"""What settings become for the parts of a process."""

from policies import PROFILES, LengthBuckets
from router.rules import (
    client_limits,
    client_quota,
    fleet_rules,
    held_bytes_max,
    scrape_limits,
)
from router.settings import ServerSettings, Settings


def test_the_fold_is_told_what_counts_in_it() -> None:
    settings = Settings.model_validate(
        {
            "server": {"request_timeout_s": 100},
            "placement": {"prefill_tokens_per_s": 5_000, "congestion_max": 3, "length_buckets": ["1K", "2K"]},
            "queue": {"classes": {"gold": 3, "tin": 1}, "default_class": "tin", "fairness_quantum_s": 2},
        }
    )
    rules = fleet_rules(settings, {"acme": 7.0}.__getitem__)
    assert rules.default_model.b_s == 1 / 5_000
    assert rules.default_model.a_s == PROFILES["default"].a_s
    assert (rules.congestion_max_per_s, rules.lifetime_s_max, rules.quantum_s) == (3, 200, 2)
    assert rules.buckets == LengthBuckets((1_024, 2_048))
    assert (rules.weight_of("gold"), rules.weight_of("tin/acme")) == (3, 7)


def test_the_longest_body_can_be_held_whatever_the_bound() -> None:
    for held, longest, bound in ((0, 4096, 0), (2048, 4096, 4096), (8192, 4096, 8192)):
        server = Settings.model_validate(
            {"server": {"held_bytes_max": held, "body_bytes_max": longest}}
        ).server
        assert held_bytes_max(server) == bound


def test_clients_have_no_more_connections_than_there_are_files() -> None:
    for said, files, bound in ((0, 100, 100), (30, 100, 30), (300, 100, 100)):
        assert client_quota(ServerSettings(connections_max=said), files).connections_max == bound


def test_a_scraper_may_do_what_a_client_may_but_send_a_body() -> None:
    server = ServerSettings(read_timeout_s=7, header_count_max=9)
    assert scrape_limits(server).body_bytes_max == 0
    assert (scrape_limits(server).receive_s_max, scrape_limits(server).headers_max) == (7, 9)
    assert client_limits(server).body_bytes_max > 0
