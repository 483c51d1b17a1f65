"""Where engines publish, from labels; and where the gateway does not go."""

import pytest

from router.destinations import Destinations
from router.engines.sources import Source
from router.errors import ClientError
from router.fleet.kv_sources import check_labels, label_hosts, labelled


def test_labels_name_one_publisher_per_rank() -> None:
    labels = {"kv_events": "tcp://engine-0:5557", "kv_replay": "tcp://engine-0:6557"}
    assert labelled(labels, 2) == (
        Source(0, "tcp://engine-0:5557", "tcp://engine-0:6557"),
        Source(1, "tcp://engine-0:5558", "tcp://engine-0:6558"),
    )
    assert labelled({}, 2) == ()
    assert labelled({"kv_events": "bind:tcp://0.0.0.0:5557"}, 1) == (
        Source(0, "tcp://0.0.0.0:5557", None, "", True),
    )
    assert labelled({"kv_events": "ipc:///tmp/e"}, 1) == (Source(0, "ipc:///tmp/e"),)


@pytest.mark.parametrize(
    "labels",
    [
        *({"kv_events": text} for text in ("engine:5557", "tcp://engine", "tcp://engine:99999", "udp://e:1")),
        {"kv_events": "tcp://*:5557"},
        {"kv_events": "tcp://engine:5557", "kv_replay": "bind:tcp://engine:5558"},
    ],
)
def test_a_label_that_is_no_endpoint_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ClientError):
        labelled(labels, 1)


def test_a_file_stands_for_one_rank_only() -> None:
    with pytest.raises(ClientError):
        labelled({"kv_events": "ipc:///tmp/e"}, 2)


def test_labels_that_others_say_are_judged_like_urls() -> None:
    anywhere = Destinations(loopback=False).check_host
    check_labels({"kv_events": "tcp://10.0.0.7:5557", "kv_replay": "tcp://10.0.0.7:5558"}, anywhere)
    for refused in (
        {"kv_events": "tcp://169.254.169.254:80"},
        {"kv_events": "tcp://10.0.0.7:5557", "kv_replay": "tcp://169.254.169.254:80"},
        {"kv_events": "ipc:///run/docker.sock"},
        {"kv_events": "bind:tcp://0.0.0.0:22"},
    ):
        with pytest.raises(ClientError):
            check_labels(refused, anywhere)
    check_labels({"kv_events": "ipc:///tmp/e"}, Destinations().check_host)


def test_the_hosts_of_labels_are_known_whatever_else_is_wrong_with_them() -> None:
    assert label_hosts({"kv_events": "bind:tcp://a:1", "kv_replay": "tcp://[::1]:2"}) == {"a", "::1"}
    assert label_hosts({"kv_events": "nonsense"}) == set()
