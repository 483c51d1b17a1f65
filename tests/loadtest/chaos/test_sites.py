"""Workers stand at their sites, and the tables show the observations."""

from typing import Any

import pytest

from loadtest.chaos import End, Visit, sites
from loadtest.chaos.crowd import KINDS, Served
from loadtest.chaos.play import Play, Seen
from loadtest.chaos.sites import SitesPlan


def served(kind: str, scene: str) -> Served:
    seen = Visit(End.ANSWERED, 1.0, 1.0, 2.0, 0.123, 200, "", None, "")
    return Served(kind, "normal", "", scene, "r1", True, None, 500, seen)


@pytest.mark.parametrize("protocol", ["sglang", "nixl", "mooncake"])
def test_workers_of_the_other_site_are_linked_and_all_say_how_they_hand_over(protocol: Any) -> None:
    parts = SitesPlan(protocol=protocol).troupe.parts
    assert [part.name for part in parts if part.linked] == ["far1", "far2"]
    assert parts[0].labels == f"site=dc1 handover={protocol} worker_class=h20"
    assert parts[-1].labels == f"site=dc2 handover={protocol} worker_class=h200"
    assert {part.settings.dialect for part in parts} == {"sglang" if protocol == "sglang" else "vllm"}


def test_strikes_are_at_shares_of_the_run() -> None:
    play = SitesPlan(seconds=200.0).play
    assert [each.target for each in play.strikes] == ["p2", "d2", "link", "r2", "link"]
    assert [each.at_s for each in play.strikes] == pytest.approx([30.0, 60.0, 90.0, 144.0, 160.0])
    calm = SitesPlan(disaster=False).play
    assert (len(calm.scenes), len(calm.strikes)) == (1, 0)


@pytest.mark.parametrize(("left", "status"), [([], 0), (["r1: waiting 1"], 1)])
def test_the_status_says_whether_a_promise_was_broken(
    left: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plays: list[Play] = []

    async def run(play: Play) -> Seen:
        plays.append(play)
        requests = [served(kind, "calm") for kind in KINDS]
        seen = Seen(play, requests, len(requests), left=left)
        counts = {"prompt_tokens": 500, "cached_tokens": 125}
        seen.stats = {("p1", 1): {"requests": 4, **counts}, ("far2", 1): {"requests": 2, **counts}}
        seen.link = {
            "sent_bytes": 3e9,
            "arrived": 2,
            "lost": 1,
            "pulled": [],
            "egress": {"buckets": []},
        }
        latest = [{"remote": remote, "why": f"because {remote}"} for remote in (True, False)]
        seen.offload = {"decided": {"sooner_remote": 2}, "latest": latest}
        return seen

    monkeypatch.setattr("loadtest.chaos.promises.run_play", run)
    assert sites.main(["--seconds", "9", "--no-disaster", "--", "--policy", "random"]) == status
    assert plays == [SitesPlan(seconds=9.0, disaster=False, flags=["--policy", "random"]).play]
    text = capsys.readouterr().out
    assert text.count("BROKEN") == status
    assert "123 ms / 123 ms / 123 ms" in text
    assert "prefilled by far2 2, p1 4" in text
    assert "hit ratio 25.0% of 1000 prompt tokens" in text
    assert "2 sooner_remote" in text
    assert "because True" in text
    assert "because False" not in text
    assert "link: 3.0 GB in 2 transfers, 1 lost, 2.7 Gbit/s on average" in text
