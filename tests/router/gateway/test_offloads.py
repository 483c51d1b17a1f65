"""What is told of where prompts were prefilled."""

import msgspec

from policies import LinkState, OffloadReason, OffloadVerdict
from router.gateway.offloads import KEPT, Offloads, explained

HOME = OffloadVerdict(
    remote=False,
    site="a",
    reason=OffloadReason.BELOW_THRESHOLD,
    threshold_tokens=19_400,
    uncached_local=10_000,
    uncached_remote=30_000,
    kv_bytes=600_000_000,
    link_s=0.25,
    local_s=1.8,
    remote_s=1.25,
    utilisation=0.4,
    state=LinkState.ABUNDANT,
    link="b>a",
    local_others_s=0.1,
    remote_others_s=0.2,
    wait_s=0.05,
)
AWAY = msgspec.structs.replace(HOME, remote=True, site="b", reason=OffloadReason.ABOVE_THRESHOLD)


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_000_000_000

    def __call__(self) -> int:
        return self.now_us


def test_a_decision_is_told_in_tokens_seconds_and_bytes() -> None:
    clock = Clock()
    offloads = Offloads(clock)
    offloads.add("req-1", AWAY)
    clock.now_us += 1_500_000
    assert offloads.described()["latest"] == [
        {
            "age_s": 1.5,
            "request_id": "req-1",
            "remote": True,
            "site": "b",
            "reason": "above_threshold",
            "why": explained(AWAY),
            "threshold_tokens": 19_400,
            "home": {"uncached_tokens": 10_000, "ttft_s": 1.8, "others_lose_s": 0.1},
            "elsewhere": {
                "link": "b>a",
                "link_state": "abundant",
                "utilisation": 0.4,
                "uncached_tokens": 30_000,
                "kv_bytes": 600_000_000,
                "ttft_s": 1.25,
                "link_s": 0.25,
                "wait_s": 0.05,
                "others_lose_s": 0.2,
            },
        }
    ]


def test_the_sentence_says_what_both_sides_would_take() -> None:
    assert explained(AWAY) == (
        "prefilled over b>a (above_threshold): 10,000 uncached tokens take 1.800 s at home; 30,000 take "
        "1.250 s there, 0.250 s of it for 600.0 MB of KV on a link that is abundant and 40% full, "
        "threshold 19,400"
    )
    alone = msgspec.structs.replace(AWAY, local_s=-1.0, kv_bytes=-1, threshold_tokens=0)
    assert "nobody prefills at home" in explained(alone)
    assert "KV of unknown weight" in explained(alone)
    assert "threshold" not in explained(alone).partition(":")[2]


def test_what_nobody_knows_is_null() -> None:
    offloads = Offloads(Clock())
    offloads.add("r", msgspec.structs.replace(HOME, local_s=-1.0, kv_bytes=-1, threshold_tokens=0, site=""))
    (told,) = offloads.described()["latest"]
    assert (told["home"], told["elsewhere"]["kv_bytes"], told["threshold_tokens"], told["site"]) == (
        None,
    ) * 4


def test_the_last_minute_is_added_up_and_older_decisions_are_not() -> None:
    """Only what is prefilled elsewhere crosses a link."""
    clock, reasons = Clock(), list[str]()
    offloads = Offloads(clock, reasons.append)
    offloads.add("old", AWAY)
    clock.now_us += 30_000_000
    for verdict in (HOME, AWAY, AWAY):
        offloads.add("new", verdict)
    clock.now_us += 30_000_000
    assert offloads.described()["last_minute"] == {
        "requests": 3,
        "remote": 2,
        "kv_bytes": 1_200_000_000,
        "reasons": {"above_threshold": 2, "below_threshold": 1},
    }
    assert reasons == ["above_threshold", "below_threshold", "above_threshold", "above_threshold"]


def test_bytes_of_unknown_weight_do_not_count_backwards() -> None:
    offloads = Offloads(Clock())
    offloads.add("r", msgspec.structs.replace(AWAY, kv_bytes=-1))
    assert offloads.described()["last_minute"]["kv_bytes"] == 0


def test_only_the_newest_are_kept() -> None:
    offloads = Offloads(Clock())
    for number in range(KEPT + 5):
        offloads.add(f"r{number}", HOME)
    latest = [each["request_id"] for each in offloads.described()["latest"]]
    assert (len(latest), latest[0]) == (KEPT, f"r{KEPT + 4}")
