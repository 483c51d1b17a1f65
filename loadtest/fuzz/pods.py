"""Hostile labels and annotations of pods, and hostile answers of an API server."""

import json
from random import Random
from typing import Any

from loadtest.fuzz.actions import Pods
from loadtest.fuzz.values import damaged

PREFIX = "cacheway.io/"
NAMESPACE = "llm"

_COUNTS = ("port", "capacity-tokens", "bootstrap-port", "dp-size")
_NUMBERS = ("²", "٣", "0", "-1", "65536", "9" * 5_000, "8000,²", "1e400", "NaN", " 9", "+9", "9_0", "०")
_SAID = (
    *("role", "scheme", "site", "bootstrap-host", "handover", "worker-class", "convertible"),
    *("bucket", "kv-events", "models", "discovered", "x"),
)
_VALUES: tuple[Any, ...] = (
    *(
        "²",
        "٣",
        "0",
        "-1",
        "65536",
        "9" * 5_000,
        "8000,²",
        ",".join(map(str, range(1, 200))),
        "http",
        "prefill",
    ),
    *(
        "\ud800",
        "\x00",
        "a\nb",
        "\u0085",
        "z" * 70_000,
        "http://169.254.169.254/",
        "none",
        "true",
        "1e400",
        "",
    ),
    *("evil.example", "mooncake", "[::1]", "<b>"),
)
_WRONG: tuple[Any, ...] = (None, 5, [], {"a": 1}, 2**64, 1e308, "²", True)


def _said(random: Random) -> tuple[str, Any]:
    if random.random() < 0.5:
        return PREFIX + random.choice(_COUNTS), random.choice(_NUMBERS)
    return PREFIX + random.choice((*_SAID, *_COUNTS)), random.choice((*_VALUES, *_NUMBERS))


def pod(random: Random, name: str) -> dict[str, Any]:
    """A pod at an address without a listener."""
    annotations = dict(_said(random) for _ in range(random.choice((1, 1, 2, 4))))
    labels = {"app": "engine"}
    if random.random() < 0.3:
        labels |= dict([_said(random)])
    made: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": name,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "ports": [
                        {
                            "name": "http",
                            "containerPort": random.choice((9, 0, 70_000, 1)),
                            "protocol": "TCP",
                        }
                    ],
                }
            ]
        },
        "status": {
            "phase": "Running",
            "podIP": random.choice(
                ("127.0.0.1", "127.0.0.1", "not an address", "169.254.169.254", "::1", "")
            ),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    if random.random() < 0.04:
        part = random.choice(("metadata", "spec", "status"))
        made[part][random.choice(tuple(made[part]))] = random.choice(_WRONG)
    return made


def pods(random: Random) -> Pods:
    """Some pods that come together."""
    name = f"evil-{random.getrandbits(32):08x}"
    objects = [
        json.dumps(pod(random, f"{name}-{number}")).encode() for number in range(random.choice((1, 1, 3)))
    ]
    if random.random() < 0.03:
        objects[0] = damaged(random, objects[0]).replace(b"\n", b"")
    return Pods(tuple(objects))
