"""Answers of a hostile worker: to probes, to questions about itself, and to requests."""

from random import Random

from loadtest.fuzz.actions import Script
from loadtest.fuzz.values import damaged, member, number, obj, text, value

WORKER_MODEL = "hostile"
"""Served by hostile workers alone, with any other claims, so that no other client's requests go there."""

_STATUSES = (
    b"200 OK",
    b"204 No Content",
    b"304 Not Modified",
    b"101 X",
    b"500 X",
    b"503 X",
    b"999 X",
    b"600 X",
    b"007 X",
    b"abc",
)

_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def answer(body: bytes, content_type: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    """A sound answer."""
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        content_type,
        len(body),
        body,
    )


def models(random: Random, *more: bytes) -> bytes:
    """An answer to ``/v1/models``: our model, and others with hostile values."""
    hostile = (("id", text), ("max_model_len", number), ("root", text))
    entries = [
        obj([member("id", b'"%b"' % WORKER_MODEL.encode()), *more]),
        *(
            obj([member(name, make(random)) for name, make in hostile])
            for _ in range(random.choice((0, 1, 3)))
        ),
    ]
    return obj([member("object", b'"list"'), member("data", b"[" + b",".join(entries) + b"]")])


def _info(random: Random) -> bytes:
    state = obj(
        [
            member("effective_max_running_requests_per_dp", number(random)),
            member("disaggregation_mode", text(random)),
        ]
    )
    names = (
        "max_total_num_tokens",
        "dp_size",
        "max_running_requests",
        "chunked_prefill_size",
        "disaggregation_bootstrap_port",
    )
    members = [member(name, number(random)) for name in names]
    return obj(
        [
            *members,
            member("internal_states", random.choice((b"[%b]" % state, value(random)))),
            member("kv_events_config", value(random)),
        ]
    )


_METRICS = (
    b"vllm:kv_cache_usage_perc %b\nvllm:num_requests_running %b\nvllm:num_requests_waiting %b\n",
    b"sglang:token_usage %b\nsglang:num_running_reqs %b\nsglang:num_queue_reqs %b\n",
    b"sglang:num_used_tokens %b\n",
    b'vllm:cache_config_info{block_size="%b",num_gpu_blocks="%b",kv_cache_size_tokens="%b"} 1\n',
    b"process_start_time_seconds %b\n",
)


def _metrics(random: Random) -> bytes:
    lines = b""
    for template in random.sample(_METRICS, 3):
        values = (
            random.choice((number(random)[:400].strip(b'"'), b"1e300", b"NaN", b"+Inf", b"-1"))
            for _ in range(template.count(b"%b"))
        )
        lines += template % tuple(values)
    return lines if random.random() < 0.8 else damaged(random, lines)


def _usage(random: Random) -> bytes:
    details = obj([member("cached_tokens", number(random))])
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return member(
        "usage",
        obj([*(member(name, number(random)) for name in names), member("prompt_tokens_details", details)]),
    )


def _completion(random: Random) -> bytes:
    """An answer to a request, whole or as a stream."""
    choice = member("choices", b'[{"index":0,"text":"x"}]')
    body = obj([member("id", b'"1"'), choice, _usage(random)])
    match random.randrange(4):
        case 0:
            return answer(body)
        case 1:
            events = (
                b"".join(b"data: %b\n\n" % obj([choice, _usage(random)]) for _ in range(3))
                + b"data: [DONE]\n\n"
            )
            return answer(events, b"text/event-stream")
        case 2:
            events = damaged(random, b'data: %b\n\ndata: {"choi' % body)
            return _STREAM + b"%x\r\n%b\r\n" % (len(events), events)
        case _:
            return answer(value(random))


def _broken(random: Random, whole: bytes) -> bytes:
    head, _, body = whole.partition(b"\r\n\r\n")
    match random.randrange(8):
        case 0:
            return whole[: random.randrange(len(whole))]
        case 1:
            return head + b"\r\nx-endless: " + b"e" * random.choice((1_000, 300_000))
        case 2:
            return head + b"\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n" + body
        case 3:
            return b"HTTP/1.1 100 Continue\r\n\r\n" * random.choice((1, 500)) + whole
        case 4:
            return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (
                random.choice(_STATUSES),
                len(body),
                body,
            )
        case 5:
            return head + b"\r\nx: a\r\n b\r\nset-cookie: a\x00b\r\n\r\n" + body
        case 6:
            return whole + whole
        case _:
            return random.randbytes(random.choice((1, 200)))


def answers(random: Random) -> Script:
    """A worker, and requests that go to it."""
    answers_by_path = {
        "/health": answer(b"{}"),
        "/v1/models": answer(models(random)),
        "/get_server_info": answer(_info(random)),
        "/metrics": answer(_metrics(random), b"text/plain"),
        "/v1/completions": _completion(random),
    }
    for path in random.sample(sorted(answers_by_path), random.choice((0, 1, 1, 2))):
        if path != "/v1/models" or random.random() < 0.3:
            answers_by_path[path] = _broken(random, answers_by_path[path])
    hangs = frozenset(path for path in answers_by_path if random.random() < 0.08)
    stream = random.choice((b"true", b"false"))
    body = obj(
        [
            member("model", b'"%b"' % WORKER_MODEL.encode()),
            b'"prompt":"hello","max_tokens":4',
            member("stream", stream),
        ]
    )
    return Script(answers_by_path, hangs, (body,) * random.choice((1, 2)))
