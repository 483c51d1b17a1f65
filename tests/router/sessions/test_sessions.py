"""The session of a request, and the worker that served it last."""

import re
from typing import Any

import orjson
import pytest
from fakes.gateway import Bench, chat

from router.gateway.endpoints import Endpoint
from router.gateway.parsing import ParsedRequest
from router.session_rules import SESSION_HEADERS, SessionRules
from router.sessions import Sessions, session_named
from router.tenant import ANONYMOUS, Tenant

UUID = "57a121ec-f78c-48c3-a745-e3036a3ecc33"
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


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"session_id": "a", "metadata": {"session_id": "b"}, "prompt_cache_key": "c"}, "a"),
        ({"metadata": {"session_id": "b"}, "prompt_cache_key": "c", "user": "u"}, "b"),
        ({"metadata": {"user_id": f"user_x_account__session_{UUID}"}, "prompt_cache_key": "c"}, UUID),
        ({"metadata": {"user_id": "x"}, "user": "u", "safety_identifier": "h"}, ""),
    ],
)
def test_fields_count_in_the_order_of_the_setting(bench: Bench, fields: dict[str, Any], shown: str) -> None:
    assert bench.sessions.named(parsed(bench, **fields), ()).session == shown


def test_a_field_counts_only_if_the_setting_names_it(bench: Bench) -> None:
    request = parsed(bench, prompt_cache_key="c", session_id="s", user="u")
    bench.sessions.use(SessionRules(session_fields=("user",)))
    by_user = bench.sessions.named(request, ())
    assert re.fullmatch("key-[0-9a-f]{16}", by_user.session), "a name of a person is shown as a hash"
    bench.sessions.use(SessionRules(session_fields=()))
    assert bench.sessions.named(request, ()).session == ""
    assert bench.sessions.named(request, ()).key == request.key


def test_a_name_is_one_session_wherever_it_stands(bench: Bench) -> None:
    """Codex and Claude Code send the session twice, in a header and in the body."""
    requests = [
        bench.sessions.named(parsed(bench), [(b"x-session-id", b"s")]),
        bench.sessions.named(parsed(bench, prompt_cache_key="s"), ()),
        bench.sessions.named(parsed(bench, session_id="s"), ()),
    ]
    assert len({each.key for each in requests}) == 1


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


class Clock:
    """Seconds under control of the test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def remembering(bench: Bench, **rules: Any) -> tuple[Sessions, list[tuple[int, str]], Clock]:
    """Sessions with a clock, and the operations that they publish for other replicas."""
    told, clock = list[tuple[int, str]](), Clock()

    def tell(session: int, worker_id: str) -> None:
        told.append((session, worker_id))

    hasher = bench.gateway.reader.hasher
    return Sessions(SessionRules(**rules), bench.shared.fleet, hasher, tell, clock), told, clock


def test_other_replicas_are_told_once_and_when_the_worker_changes(bench: Bench) -> None:
    sessions, told, clock = remembering(bench, session_ttl_s=100.0)
    request = sessions.named(parsed(bench), [(b"x-session-id", b"s")])
    for clock.now_s, worker_id in ((0, "w0:80"), (10, "w0:80"), (20, "w1:80"), (30, "w1:80"), (80, "w1:80")):
        sessions.placed(request, worker_id)
    assert told == [(request.key, worker_id) for worker_id in ("w0:80", "w1:80", "w1:80")], "the last: again"
    assert sessions.finish("", "s")
    assert told[-1] == (request.key, "")
    assert not sessions.finish("", "s")
    assert told[-2:] == [(request.key, "")] * 2, "another replica may know it"


def test_a_session_is_forgotten_in_time(bench: Bench) -> None:
    sessions, _, clock = remembering(bench, session_ttl_s=100.0)
    request = sessions.named(parsed(bench), [(b"x-session-id", b"s")])
    sessions.placed(request, "w1:80")
    clock.now_s = 99.0
    assert sessions.home_of(request) >= 0
    clock.now_s = 100.0
    assert sessions.home_of(request) == -1
    sessions.heard(request.key, "w2:80", 60.0)
    assert sessions.home_of(request) == bench.local("w2:80").slots[0]
    clock.now_s = 140.0
    assert sessions.home_of(request) == -1


def test_another_time_to_live_holds_for_sessions_that_are_known(bench: Bench) -> None:
    sessions, told, clock = remembering(bench, session_ttl_s=1000.0)
    request = sessions.named(parsed(bench), [(b"x-session-id", b"s")])
    sessions.placed(request, "w1:80")
    clock.now_s = 60.0
    sessions.use(SessionRules(session_ttl_s=100.0))
    assert sessions.home_of(request) >= 0
    sessions.placed(request, "w1:80")
    assert len(told) == 2, "the stream would lose it before the session ends"
    clock.now_s = 159.0
    assert sessions.home_of(request) >= 0
    clock.now_s = 160.0
    assert sessions.home_of(request) == -1


def test_what_another_replica_tells_counts(bench: Bench) -> None:
    sessions, told, _ = remembering(bench, session_ttl_s=100.0)
    request = sessions.named(parsed(bench), [(b"x-session-id", b"s")])
    sessions.heard(request.key, "w1:80", 0.0)
    assert sessions.home_of(request) == bench.local("w1:80").slots[0]
    sessions.placed(request, "w1:80")
    assert told == [], "all replicas know that"
    sessions.heard(request.key, "unknown:80", 0.0)
    assert sessions.home_of(request) == -1
    sessions.heard(request.key, "w2:80", 100.0)
    assert sessions.home_of(request) == -1, "too old to count"
    sessions.heard(request.key, "", 0.0)
    assert len(sessions) == 0
    for session in range(10):
        sessions.heard(session, "w1:80", 0.0)
    sessions.use(SessionRules(sessions_max=4))
    sessions.heard(99, "w1:80", 0.0)
    assert len(sessions) == 4
    sessions.use(SessionRules(sessions_max=0))
    sessions.heard(99, "w1:80", 0.0)
    assert len(sessions) == 0


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
    assert decision.parsed.session == "mine"
    bench.check()


def test_a_session_that_moved_is_at_home_where_it_went_last(bench: Bench) -> None:
    """First turns and new prompts share nothing that a hash could see."""
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
