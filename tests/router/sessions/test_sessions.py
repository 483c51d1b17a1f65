"""The session of a request, and the worker that served it last."""

import re
from typing import Any

import orjson
import pytest
from fakes.gateway import Bench, chat

from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.session_rules import SESSION_HEADERS, SessionRules
from router.sessions import session_named
from router.tenant import ANONYMOUS, Tenant

WANTED = tuple(name.encode() for name in SESSION_HEADERS)


@pytest.fixture
def bench() -> Bench:
    return Bench(3)


def parsed(bench: Bench, tenant: Tenant = ANONYMOUS, **fields: Any) -> ParsedRequest:
    return bench.gateway.reader.parse(Endpoint.CHAT, orjson.dumps(chat(**fields)), tenant)


@pytest.mark.parametrize("name", WANTED)
def test_the_header_of_each_client_names_a_session(name: bytes) -> None:
    assert session_named([(b"accept", b"*/*"), (name, b"s-1")], WANTED) == "s-1"


@pytest.mark.parametrize("value", [b"", b"x" * 257, b"a\x01b", b"\xc3\xbc", b"a\tb"])
def test_a_value_that_is_no_name_names_no_session(value: bytes) -> None:
    assert session_named([(b"x-session-id", value)], WANTED) == ""


def test_the_first_header_of_the_list_counts() -> None:
    headers = [(b"x-smg-routing-key", b"second"), (b"x-session-id", b"first")]
    assert session_named(headers, WANTED) == "first"


def test_a_request_without_a_session_stays_as_it_is(bench: Bench) -> None:
    request = parsed(bench)
    assert bench.sessions.named(request, [(b"authorization", b"Bearer x")]) is request


def test_a_header_counts_before_the_field(bench: Bench) -> None:
    request = parsed(bench, prompt_cache_key="field")
    by_field = bench.sessions.named(request, ()).session
    assert re.fullmatch("key-[0-9a-f]{16}", by_field), "a client may write anything into it: shown as a hash"
    assert bench.sessions.named(request, (), "given").session == "given"
    assert bench.sessions.named(request, [(b"x-session-id", b"header")]).session == "header"


def test_requests_of_a_session_share_a_key_whatever_their_prompt(bench: Bench) -> None:
    headers = [(b"x-session-id", b"s")]
    one, other = (parsed(bench, messages=[{"role": "user", "content": text}]) for text in ("a", "b"))
    assert one.key != other.key
    assert bench.sessions.named(one, headers).key == bench.sessions.named(other, headers).key


def test_a_session_of_one_tenant_is_never_anothers(bench: Bench) -> None:
    headers = [(b"x-session-id", b"s")]
    one, other = (bench.sessions.named(parsed(bench, Tenant(name)), headers) for name in ("a", "b"))
    bench.sessions.placed(one, "w1:80")
    assert bench.sessions.home_of(one) == bench.local("w1:80").slots[0]
    assert bench.sessions.home_of(other) == -1
    assert not bench.sessions.finish("b", "s")
    assert bench.sessions.home_of(one) >= 0


def test_the_oldest_of_too_many_sessions_is_forgotten(bench: Bench) -> None:
    bench.sessions.use(SessionRules(sessions_max=2))
    requests = [bench.sessions.named(parsed(bench), [(b"x-session-id", b"%d" % n)]) for n in range(3)]
    bench.sessions.placed(requests[0], "w0:80")
    bench.sessions.placed(requests[1], "w1:80")
    bench.sessions.placed(requests[0], "w0:80")
    bench.sessions.placed(requests[2], "w2:80")
    assert [bench.sessions.home_of(each) >= 0 for each in requests] == [True, False, True]
    bench.sessions.use(SessionRules(sessions_max=0))
    assert len(bench.sessions) == 0
    bench.sessions.placed(requests[0], "w0:80")
    assert len(bench.sessions) == 0


def test_turned_off_a_session_has_a_name_only(bench: Bench) -> None:
    bench.sessions.use(SessionRules(sessions_max=0))
    request = parsed(bench)
    named = bench.sessions.named(request, [(b"x-session-id", b"s")])
    assert (named.session, named.key) == ("s", request.key)


def test_a_worker_that_is_gone_is_nobodys_home(bench: Bench) -> None:
    request = bench.sessions.named(parsed(bench), [(b"x-session-id", b"s")])
    bench.sessions.placed(request, "w1:80")
    bench.registry.remove("w1:80")
    assert bench.sessions.home_of(request) == -1


def test_the_list_of_headers_may_change(bench: Bench) -> None:
    request, headers = parsed(bench), [(b"x-team", b"t")]
    assert bench.sessions.named(request, headers) is request
    bench.sessions.use(SessionRules(session_headers=("x-team",)))
    assert bench.sessions.named(request, headers).session == "t"


def test_a_session_is_in_the_log_and_the_decisions(bench: Bench) -> None:
    bench.start(chat(), headers=[(b"x-session-id", b"mine")])
    bench.upstream.answer()
    assert bench.log[-1]["session"] == "mine"
    (decision,), _ = bench.gateway.reports.decisions.since(0)
    assert decision.session == "mine"
    bench.check()


def test_a_session_that_moved_is_at_home_where_it_went_last(bench: Bench) -> None:
    """First turns and prompts that begin anew share nothing that a hash could see."""
    places = set()
    for number in range(6):
        bench.start(
            chat(messages=[{"role": "user", "content": f"{number} " * 2000}]),
            headers=[(b"x-session-id", b"mine")],
        )
        places.add(bench.upstream.pool.url)
        bench.upstream.answer()
    assert len(places) == 1
    bench.check()
