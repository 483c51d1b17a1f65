"""``POST /explain`` of past requests: all of the prompt is compared, or the answer says that it is not."""

from typing import Any

from fakes.admin import code
from fakes.gateway import Bench, chat
from fakes.insight import client_of
from fakes.rehearsals import digest

from router.gateway.recent_decisions import RecentDecisions


async def ask(bench: Bench, question: Any, status: int = 200) -> dict[str, Any]:
    """Ask, and see that nothing has changed."""
    before = digest(bench)
    async with client_of(bench) as client:
        answer = await client.post("/explain", json=question)
    assert digest(bench) == before
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    if status != 200:
        found["code"] = code(answer)
    return found


def answered(bench: Bench, body: dict[str, Any], request_id: bytes) -> None:
    bench.start(body, headers=[(b"x-request-id", request_id)])
    bench.time.advance(0.1)
    bench.upstream.answer()


async def test_all_of_a_past_requests_prompt_is_compared() -> None:
    """Another request shares its first block only: nothing of the rest may be taken for cached."""
    bench = Bench(workers=3)
    answered(bench, chat("start " * 500 + "mine " * 1500), b"mine")
    answered(bench, chat("start " * 500 + "other " * 1500), b"other")

    found = await ask(bench, {"request_id": "mine"})
    same = await ask(bench, {"request": chat("start " * 500 + "mine " * 1500)})

    assert found["compared"] == {
        "all": True,
        "prompt_tokens": found["past"]["prompt_tokens"],
        "note": None,
    }
    assert (found["past"]["request_id"], found["past"]["outcome"]) == ("mine", "completed")
    assert found["candidates"] == same["candidates"]
    assert found["request"] == same["request"]
    assert found["candidates"][0]["matched_tokens"] == 256 * found["request"]["blocks"]
    assert found["request"]["blocks"] > 5


async def test_a_past_request_whose_hashes_are_gone_says_that_only_its_start_is_compared() -> None:
    bench = Bench(workers=2)
    bench.gateway.reports.decisions = RecentDecisions(hashes_bytes_max=2000)
    answered(bench, chat("mine " * 30_000), b"mine")
    answered(bench, chat("other " * 30_000), b"other")

    found = await ask(bench, {"request_id": "mine"})

    assert found["compared"]["all"] is False
    assert found["compared"]["tokens"] == 256
    assert found["compared"]["note"].startswith("Only the first 256 tokens are compared")
    assert found["candidates"][0]["matched_tokens"] == 256
    assert found["request"]["prompt_tokens"] == round(found["past"]["prompt_tokens"])


async def test_a_past_request_that_is_not_kept_or_was_not_read_says_so() -> None:
    bench = Bench(workers=1)
    bench.start(b"{", headers=[(b"x-request-id", b"broken")])

    assert (await ask(bench, {"request_id": "unknown"}, 404))["code"] == "not_found"
    assert (await ask(bench, {"request_id": "broken"}, 409))["code"] == "no_prompt"
