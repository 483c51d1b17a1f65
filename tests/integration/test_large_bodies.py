"""Bodies of megabytes on real sockets: parsed in steps, in order, and seen from outside."""

import asyncio
import json

from fakes.running import Fleet

from loadtest.engine import EngineSettings

WIDE = EngineSettings(
    prefill_tokens_per_s=1e9,
    prefill_base_ms=0.1,
    tpot_ms=0,
    max_model_len=10_000_000,
    cache_tokens=10_000_000,
)


def body_of(model: str, prompt: str, **more: object) -> bytes:
    """A chat request."""
    messages = [{"role": "user", "content": prompt}]
    return json.dumps({"model": model, "messages": messages, **more}).encode()


def head_of(body: bytes) -> bytes:
    """The head of a request with this body."""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n" % len(body)
    )


def text(length: int) -> str:
    """Prose that needs escapes in JSON, and other characters than English has."""
    return ('say "hello", 日本 \n' * (length // 20))[:length]


async def test_the_second_large_request_is_predicted_and_served_from_the_cache(fleet: Fleet) -> None:
    engine = await fleet.engine(WIDE)
    gateway = await fleet.gateway(engine.url)
    body = body_of("emulated", text(1 << 20), max_tokens=1)

    first = await gateway.client.post("/v1/chat/completions", content=body)
    second = await gateway.client.post("/v1/chat/completions", content=body)

    assert (first.status_code, second.status_code) == (200, 200)
    assert first.headers["x-cacheway-cached-tokens"] == "0"
    prompt_tokens = second.json()["usage"]["prompt_tokens"]
    assert int(second.headers["x-cacheway-cached-tokens"]) > 0.9 * prompt_tokens


async def test_answers_keep_their_order_behind_a_large_body_on_one_connection(fleet: Fleet) -> None:
    """The small request could be answered long before the large one is parsed."""
    engine = await fleet.engine(WIDE)
    gateway = await fleet.gateway(engine.url)
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    prompts = [text(2 << 20), "small", text(1 << 20)]
    for prompt in prompts:
        body = body_of("emulated", prompt, max_tokens=1)
        writer.write(head_of(body) + body)

    counts = []
    async with asyncio.timeout(60):
        for _ in prompts:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length"))
            answer = json.loads(await reader.readexactly(int(length.partition(b":")[2])))
            counts.append(answer["usage"]["prompt_tokens"])
    writer.close()

    assert counts[0] > counts[2] > counts[1]


async def test_many_large_bodies_at_once_all_arrive_and_leave_nothing(fleet: Fleet) -> None:
    engine = await fleet.engine(WIDE)
    gateway = await fleet.gateway(engine.url)
    bodies = [body_of("emulated", f"{number}{text(600_000)}", max_tokens=1) for number in range(12)]

    answers = await asyncio.gather(
        *(gateway.client.post("/v1/chat/completions", content=body) for body in bodies)
    )

    assert [answer.status_code for answer in answers] == [200] * 12
    assert gateway.idle()
    metrics = (await gateway.client.get("/metrics")).text
    assert "cacheway_event_loop_lag_seconds_count" in metrics
