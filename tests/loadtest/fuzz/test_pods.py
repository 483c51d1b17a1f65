"""Pods claim all that pods may, and more."""

import json
from random import Random

from loadtest.fuzz.pods import PREFIX, pods


def test_the_digit_that_is_none_is_said_of_ports_and_of_capacities() -> None:
    said = b"".join(each for seed in range(300) for each in pods(Random(seed)).pods)
    for name in ("port", "capacity-tokens"):
        assert json.dumps({PREFIX + name: "²"})[1:-1].encode() in said


def test_most_pods_are_json_that_an_api_server_may_send() -> None:
    sound = 0
    for seed in range(100):
        for pod in pods(Random(seed)).pods:
            try:
                sound += isinstance(json.loads(pod), dict)
            except ValueError:
                continue
    assert sound > 100
