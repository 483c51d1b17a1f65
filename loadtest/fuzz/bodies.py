"""JSON bodies of all endpoints that clients use: a valid one, in which some fields are hostile."""

from random import Random

from loadtest.fuzz.actions import NUMBERED, Wire
from loadtest.fuzz.values import damaged, many, member, nested, number, obj, text, value

MODEL = "emulated"

_MESSAGES = b'[{"role":"user","content":"hello there"}]'

_COUNTS = (
    "n",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "priority",
    "best_of",
    "seed",
    "logprobs",
)
_REALS = ("temperature", "top_p", "frequency_penalty", "timeout")
_NAMES = ("model", "user", "prompt_cache_key", "lora_path", "service_tier", "cache_salt", "extra_key")
_ODDS = (
    "stop",
    "logit_bias",
    "stream",
    "stream_options",
    "echo",
    "prompt_logprobs",
    "logprob_start_len",
    "tools",
)
_ODDER = (
    "kv_transfer_params",
    "chat_template",
    "documents",
    "response_format",
    "mm_processor_kwargs",
    "metadata",
)

ENDPOINTS: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "/v1/completions": (member("prompt", b'"hello there"'), ("prompt", "suffix", "prompt_embeds")),
    "/v1/chat/completions": (member("messages", _MESSAGES), ("messages", "functions", "reasoning_effort")),
    "/v1/responses": (
        member("input", b'"hello"'),
        ("input", "instructions", "reasoning", "previous_response_id"),
    ),
    "/v1/messages": (member("messages", _MESSAGES), ("messages", "system", "output_config")),
    "/v1/embeddings": (member("input", b'"hello"'), ("input", "encoding_format", "dimensions")),
    "/generate": (member("text", b'"hello"'), ("text", "input_ids", "sampling_params", "image_data", "rid")),
    "/v1/rerank": (b'"query":"q","documents":["a","b"]', ("query", "documents", "top_n")),
    "/v1/score": (b'"text_1":"a","text_2":"b"', ("text_1", "text_2")),
    "/tokenize": (member("prompt", b'"hello"'), ("prompt", "messages")),
    "/detokenize": (member("tokens", b"[1,2,3]"), ("tokens",)),
    "/encode": (
        b'"req_id":"part-1","mm_items":["data:,x"],"num_parts":1,"part_idx":0',
        ("req_id", "mm_items", "num_parts", "part_idx", "modality"),
    ),
    "/send": (member("req_id", b'"part-1"'), ("req_id", "prefill_host", "embedding_port")),
    "/scheduler_receive_url": (member("req_id", b'"part-1"'), ("req_id", "receive_url", "receive_count")),
    "/scheduler_receive_meta_data": (member("req_id", b'"part-1"'), ("req_id",)),
    "/register_encoder_url": (member("url", b'"http://127.0.0.1:9"'), ("url",)),
    "/parse/reasoning": (member("text", b'"hello"'), ("text",)),
}
"""By path the members that make a body valid, and the fields of that endpoint alone."""

_HEADERS = (
    (b"x-request-id", b"x-correlation-id", b"x-tenant-id", b"x-session-id", b"user-agent", b"traceparent"),
    (b"x-cacheway-priority", b"x-priority", b"x-request-timeout", b"x-cacheway-timeout", b"x-forwarded-for"),
)
_HEADER_VALUES = (
    b"a" * 250,
    b"z" * 20_000,
    b"\xff\xfe",
    b"0",
    b"-1",
    b"1e400",
    b"\xc2\xb2",
    b"NaN",
    b"9" * 400,
    b"\t",
)


def request(
    path: str, body: bytes, headers: bytes = b"", method: bytes = b"POST", host: bytes = b"127.0.0.1"
) -> bytes:
    """A request as it is written, after which the connection closes."""
    return (
        b"%b %b HTTP/1.1\r\nhost: %b\r\nconnection: close\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n%b\r\n%b" % (method, path.encode(), host, len(body), headers, body)
    )


def _hostile(random: Random, path: str) -> list[bytes]:
    """A valid body's members, and some hostile ones that come later, so that they count."""
    base, own = ENDPOINTS[path]
    members = [member("model", b'"%b"' % MODEL.encode()), base, member("max_tokens", b"4")]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        names, make = random.choices(
            (
                (_COUNTS, number),
                (_REALS, number),
                (_NAMES, text),
                (_ODDS, value),
                (_ODDER, value),
                (own, value),
            ),
            (6, 1, 4, 2, 1, 4),
        )[0]
        members.append(member(random.choice(names), make(random)))
    if path == "/generate" and random.random() < 0.5:
        fields = [
            member(name, number(random)) for name in random.sample(("n", "max_new_tokens", "temperature"), 2)
        ]
        params = obj(fields)
        members.append(member("sampling_params", random.choice((params, b"[" + params + b"]"))))
    return members


def _counted(random: Random, path: str) -> list[bytes]:
    """A body in which nothing is wrong but one count, so that it comes as far as a decision."""
    base, _ = ENDPOINTS[path]
    name = random.choice(("n", "n", "n", "max_tokens", "max_completion_tokens", "priority"))
    members = [member("model", b'"%b"' % MODEL.encode()), base, member("max_tokens", b"4")]
    return [*members, member(name, str(10 ** random.randrange(9, 40)).encode())]


def bodies(random: Random) -> Wire:
    """One request with a hostile body, at one of all endpoints."""
    path = random.choice(tuple(ENDPOINTS))
    match random.randrange(12):
        case 3 | 4 | 5:
            path = random.choice(("/v1/completions", "/v1/chat/completions"))
            body = obj(_counted(random, path))
        case 0:
            body = damaged(random, obj(_hostile(random, path)))
        case 1:
            body = random.choice((nested, many, value))(random)
        case 2:
            body = random.choice(
                (
                    b"",
                    b"null",
                    b"\x00" * 40,
                    b"{" * 9000,
                    obj(_hostile(random, path)).decode("latin-1").encode("utf-16"),
                )
            )
        case _:
            body = obj(_hostile(random, path))
    headers = b""
    if random.random() < 0.15:
        name = random.choice(random.choice(_HEADERS))
        headers = name + b": " + random.choice(_HEADER_VALUES) + b"\r\n"
    data = request(path, body, headers)
    leaves = random.random() < 0.1
    cut = random.randrange(len(data)) if leaves or random.random() < 0.1 else len(data)
    pieces = tuple(piece for piece in (data[:cut], data[cut:]) if piece)
    if leaves and random.random() < 0.5:
        pieces = pieces[:1]
    return Wire(pieces, random.randrange(2), leaves=leaves)


_FLOODS: tuple[tuple[str, bytes, bytes], ...] = (
    ("/scheduler_receive_url", b'{"req_id":"part-%b"}' % NUMBERED, b"x-pad: %b\r\n" % (b"p" * 60_000)),
    ("/send", b'{"req_id":"part-%b"}' % NUMBERED, b"x-pad: %b\r\n" % (b"p" * 60_000)),
    ("/v1/completions", b'{"prompt":"x","max_tokens":1,"model":"%b%b"}' % (b"z" * 240_000, NUMBERED), b""),
    ("/v1/completions", b'{"prompt":"x","max_tokens":1,"model":"%b%b"}' % (b"z" * 200, NUMBERED), b""),
    (
        "/v1/completions",
        b'{"prompt":"x","max_tokens":1,"model":"emulated","prompt_cache_key":"%b"}' % NUMBERED,
        b"",
    ),
    (
        "/v1/completions",
        b'{"prompt":"x","max_tokens":1,"model":"emulated"}',
        b"x-tenant-id: t%b\r\n" % NUMBERED,
    ),
    ("/v1/messages", b'{"model":"emulated","max_tokens":1,"messages":[],"user":"%b"}' % NUMBERED, b""),
    (
        "/v1/completions",
        b'{"model":"emulated","prompt":"%b%b"}' % (b"word " * 100, NUMBERED),
        b"x-request-id: r%b\r\n" % NUMBERED,
    ),
)

_FLOOD_WEIGHTS = (4, 2, 2, 1, 1, 1, 1, 1)


def floods(random: Random) -> Wire:
    """The same request again and again, each a little different, by clients that mostly leave at once."""
    path, body, headers = random.choices(_FLOODS, _FLOOD_WEIGHTS)[0]
    repeat = 800 if path.startswith("/s") else 400 if len(body) < 1000 else 100
    leaves = path.startswith("/s") or random.random() < 0.3
    return Wire((request(path, body, headers),), random.randrange(2), leaves=leaves, repeat=repeat)
