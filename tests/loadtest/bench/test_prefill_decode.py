"""The tables show what was seen, and the status says whether a promise was broken."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from loadtest.bench import prefill_decode
from loadtest.chaos import End, PrefillDecodePlan, PrefillDecodeRun, Visit
from loadtest.chaos.crowd import KINDS, Served


def served(kind: str, phase: str) -> Served:
    seen = Visit(End.ANSWERED, 1.0, 1.0, 2.0, 0.123, 200, "", None, "")
    return Served(kind, "normal", "", phase, "http://r1", True, None, 500, seen)


@pytest.mark.parametrize(("left", "status"), [([], 0), (["r1: waiting 1"], 1)])
def test_the_status_says_whether_a_promise_was_broken(
    left: list[str], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plans: list[PrefillDecodePlan] = []

    async def run(plan: PrefillDecodePlan) -> PrefillDecodeRun:
        plans.append(plan)
        requests = [served(kind, phase) for kind in KINDS for phase in ("calm", "after")]
        seen = PrefillDecodeRun(plan, requests, len(requests), prefilled=Counter(p1=4, far2=2))
        link: dict[str, Any] = {
            "sent_bytes": 3e9,
            "arrived": 2,
            "lost": 1,
            "pulled": [],
            "egress": {"buckets": []},
        }
        latest = [{"remote": remote, "why": f"because {remote}"} for remote in (True, False)]
        offload = {"decided": {"sooner_remote": 2}, "latest": latest}
        return replace(seen, link=link, left=left, prompt_tokens=1000, cached_tokens=250, offload=offload)

    monkeypatch.setattr(prefill_decode, "run_prefill_decode", run)
    monkeypatch.setattr(
        "sys.argv", ["prefill_decode", "--seconds", "9", "--no-disaster", "--", "--policy", "random"]
    )
    assert prefill_decode.main() == status
    assert plans == [PrefillDecodePlan(seconds=9.0, disaster=False, flags=["--policy", "random"])]
    text = capsys.readouterr().out
    assert text.count("BROKEN") == status
    assert "123 ms / 123 ms / 123 ms" in text
    assert "prefilled by far2 2, p1 4" in text
    assert "hit ratio 25.0% of 1000 prompt tokens" in text
    assert "2 sooner_remote" in text
    assert "because True" in text
    assert "because False" not in text
    assert "link: 3.0 GB in 2 transfers, 1 lost, 2.7 Gbit/s on average" in text
