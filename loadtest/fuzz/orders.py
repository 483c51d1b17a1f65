"""Calls of the admin API: workers, settings, questions and orders, with hostile values.

Orders that would rightly stop the service are left out: nothing names a worker that serves, and changes of
settings that may be valid are only rehearsed (``dry_run``).
"""

from random import Random
from urllib.parse import quote_from_bytes

from loadtest.fuzz.actions import Wire
from loadtest.fuzz.bodies import request
from loadtest.fuzz.values import damaged, many, member, number, obj, text, value

_URLS = (
    *(
        b'"http://127.0.0.1:9"',
        b'"http://127.0.0.1:9/\xc2\xb2"',
        b'"http://127.0.0.1:\xc2\xb2"',
        b'"http://[::1"',
        b'"not a url"',
    ),
    *(
        b'"http://127.0.0.1:99999"',
        b'"http://\\ud800:9"',
        b'"http://169.254.169.254/"',
        b'"http://a:b@127.0.0.1:9"',
    ),
    *(
        b'"http://127.0.0.1:9/?a#b"',
        b'"http://%b:9"' % (b"h" * 3_000),
        b'"ftp://127.0.0.1"',
        b'"http://127.0.0.1:9/a/b/c"',
    ),
)
_WORKER = (
    "role",
    "worker_type",
    "site",
    "handover",
    "bootstrap_host",
    "convertible",
    "model_id",
    "api_key",
    "cost",
)
_WORKER_COUNTS = ("capacity_tokens", "bootstrap_port", "dp_size", "priority")
_LABELS = (
    "x",
    "bucket",
    "worker_class",
    "running_max",
    "site",
    "dp_size",
    "capacity",
    "discovered",
    "kv_events",
)
_SETTINGS = (
    *(
        "queue.size",
        "queue.timeout_s",
        "server.request_timeout_s",
        "placement.policy",
        "placement.policy_options",
    ),
    *(
        "reliability.retry_max_retries",
        "queue.classes",
        "admission.backlog_target_s",
        "observability.log_level",
    ),
    *("shared.namespace", "no.such", "", "queue", "server.body_bytes_max", "placement.length_buckets"),
)
_WORKER_IDS = (
    b"127.0.0.1:9",
    b"127.0.0.1:9/a/b/c",
    b"\xed\xa0\x80",
    b"\xff\xfe",
    b"evil",
    b"a" * 5_000,
    b"..",
    b"\xc2\xb2",
    b"%",
)
_QUERIES = ("limit", "class", "tenant", "lane", "replica", "drain", "after", "model")
_VIEWS = (
    "/queue/tickets",
    "/decisions",
    "/audit",
    "/tree",
    "/tree/workers",
    "/settings/history",
    "/workers",
    "/shadow",
)


def _worker(random: Random) -> bytes:
    members = [member("url", random.choice(_URLS))] if random.random() < 0.9 else []
    for _ in range(random.choice((0, 1, 2))):
        if random.random() < 0.5:
            members.append(member(random.choice(_WORKER_COUNTS), number(random)))
        elif random.random() < 0.5:
            members.append(member(random.choice(_WORKER), value(random)))
        else:
            members.append(member("labels", _labels(random)))
    return obj(members)


def _labels(random: Random) -> bytes:
    if random.random() < 0.2:
        return value(random)
    names = random.sample(_LABELS, random.choice((1, 2)))
    return obj([member(name, random.choice((text, number))(random)) for name in names])


def _settings(random: Random) -> bytes:
    values = random.choice((number, value))
    changes = obj([member(random.choice(_SETTINGS), values(random)) for _ in range(random.choice((1, 2)))])
    if random.random() < 0.1:
        changes = many(random)
    more = [member("comment", text(random))] if random.random() < 0.4 else []
    return obj([member("values", changes), member("dry_run", b"true"), *more])


def _question(random: Random) -> bytes:
    fields = (
        "model",
        "prompt",
        "n",
        "max_tokens",
        "messages",
        "endpoint",
        "priority",
        "tenant",
        "input",
        "stream",
    )
    members = [member("model", b'"emulated"'), member("prompt", b'"hello"')]
    members += [
        member(random.choice(fields), random.choice((number, value))(random))
        for _ in range(random.choice((1, 2)))
    ]
    return obj(members)


def _worker_path(random: Random) -> str:
    return "/workers/" + quote_from_bytes(
        random.choice(_WORKER_IDS), safe="/" if random.random() < 0.5 else ""
    )


def _order(random: Random) -> tuple[bytes, str, bytes]:
    match random.randrange(10):
        case 0 | 1 | 2:
            return b"POST", random.choice(("/workers", "/workers", "/admin/workers")), _worker(random)
        case 3 | 4:
            return random.choice((b"PATCH", b"PUT")), _worker_path(random), _worker(random)
        case 5:
            more = random.choice(("", "", "/drain", "/undrain", "/forget", "?drain=true", "?drain=\u00b2"))
            method = b"POST" if more.startswith("/") else b"DELETE"
            return method, _worker_path(random) + quote_from_bytes(more.encode(), safe="/?="), b""
        case 6:
            return b"PATCH", "/settings", _settings(random)
        case 7:
            return b"POST", "/explain", _question(random)
        case 8:
            path = random.choice(
                ("/settings/rollback", "/workers/evil/forget", "/register_encoder_url", "/queue/evil")
            )
            method = b"DELETE" if path.startswith("/queue") else b"POST"
            return method, path, obj([member("change_id", text(random)), member("url", random.choice(_URLS))])
        case _:
            raw = number(random)[:4_000].strip(b'"')
            return b"GET", f"{random.choice(_VIEWS)}?{random.choice(_QUERIES)}={quote_from_bytes(raw)}", b""


def orders(random: Random) -> Wire:
    """One request to the admin API."""
    method, path, body = _order(random)
    if body and random.random() < 0.08:
        body = damaged(random, body)
    if path == "/register_encoder_url":  # on the data port, where engines find it
        return Wire((request(path, body),), 1)
    return Wire((request(path, body, method=method),), random.randrange(2), "admin")
