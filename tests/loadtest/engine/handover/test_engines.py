"""Two emulated engines and a client in the role of a router: real sockets, in one process and in two."""

import asyncio
import re
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from loadtest.engine import Fault
from loadtest.engine.handover import HandoverSettings
from loadtest.engine.kv_settings import KvEventsSettings

PROMPT = [number * 7 % 1900 + 10 for number in range(300)]
BODY = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True}
ROOM = {"bootstrap_host": "127.0.0.1", "bootstrap_room": 2**62 + 5}
ASK = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
COMMAND = "import sys; from loadtest.engine.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def pair(start: Any) -> Any:
    """Starts a prefill and a decode engine."""

    async def start_pair(protocol: Any, **waits: Any) -> Any:
        dialect = "sglang" if protocol == "sglang" else "vllm"
        engines = []
        for part in ("prefill", "decode"):
            settings = HandoverSettings(protocol=protocol, part=part, **waits)
            engines += await start(dialect=dialect, handover=settings, block_tokens=16)
        return engines

    return start_pair


async def both(prefill: Any, decode: Any, port: int, path: str = "/v1/completions", **more: Any) -> Any:
    """Requests of a router to SGLang: the same to both, at once."""
    body = BODY | ROOM | {"bootstrap_port": port} | more
    return await asyncio.gather(*(client.post(path, json=body) for client in (prefill, decode)))


async def alone(start: Any, **settings: Any) -> Any:
    """The answer of an engine without disaggregation."""
    _, client = await start(block_tokens=16, **settings)
    return (await client.post("/v1/completions", json=BODY)).json()["choices"][0]["text"]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.005)


async def idle(*engines: Any) -> None:
    """Nothing runs, waits or holds room at an engine any more."""
    for engine in engines:
        at = engine.scheduler
        await until(lambda at=at: not (at.running or at.waiting or at.used_tokens))


async def test_sglang_answers_as_one_engine_would(start: Any, pair: Any) -> None:
    prefill, prefill_client, decode, decode_client = await pair("sglang")
    port = prefill.handover.port
    first, answer = await both(prefill_client, decode_client, port)
    _, again = await both(prefill_client, decode_client, port, bootstrap_room=7)

    assert answer.json()["choices"][0]["text"] == await alone(start)
    assert first.json()["usage"]["completion_tokens"] == 1
    assert answer.json()["usage"]["completion_tokens"] == 20
    # The decode engine repeats the prefill engine's reuse: 18 blocks of 16, below the last token.
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 288
    await idle(prefill, decode)
    info = (await prefill_client.get("/server_info")).json()
    assert (info["disaggregation_mode"], info["disaggregation_bootstrap_port"]) == ("prefill", port)


async def test_sglang_streams_from_the_decode_leg(pair: Any) -> None:
    prefill, prefill_client, _, decode_client = await pair("sglang")
    _, answer = await both(prefill_client, decode_client, prefill.handover.port, stream=True)

    assert answer.text.count('"text"') >= 1
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_sglang_takes_a_room_for_each_prompt_of_a_batch(pair: Any) -> None:
    prefill, prefill_client, decode, decode_client = await pair("sglang")
    port = prefill.handover.port
    batch = {"prompt": [PROMPT, PROMPT[:50]], "bootstrap_room": [4, 9]}
    batch |= {"bootstrap_host": ["127.0.0.1"] * 2, "bootstrap_port": [port] * 2}
    _, answer = await both(prefill_client, decode_client, port, **batch)

    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1]
    await idle(prefill, decode)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
async def test_sglang_refuses_what_comes_without_a_room(pair: Any, path: str) -> None:
    _, prefill_client, _, decode_client = await pair("sglang")
    body = {"text": "x", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    for client in (prefill_client, decode_client):
        answer = await client.post(path, json=body)
        assert answer.status_code == 400
        assert "without bootstrap room id" in answer.text


async def test_sglang_fails_the_leg_whose_partner_does_not_come(pair: Any) -> None:
    prefill, prefill_client, decode, decode_client = await pair("sglang", bootstrap_s=0.05, waiting_s=0.05)
    body = BODY | ROOM | {"bootstrap_port": prefill.handover.port}
    answers = [await client.post("/v1/completions", json=body) for client in (prefill_client, decode_client)]

    assert [answer.status_code for answer in answers] == [500, 500]
    assert "timed out" in answers[0].json()["message"]
    metrics = [(await client.get("/metrics")).text for client in (prefill_client, decode_client)]
    assert 'sglang:num_bootstrap_failed_reqs_total{model_name="emulated"} 1' in metrics[0]
    assert 'sglang:num_transfer_failed_reqs_total{model_name="emulated"} 1' in metrics[1]
    await idle(prefill, decode)


async def test_sglang_aborts_a_leg_by_its_id(pair: Any) -> None:
    prefill, prefill_client, decode, decode_client = await pair("sglang", waiting_s=0.3)
    body = BODY | ROOM | {"bootstrap_port": prefill.handover.port, "rid": "abc"}
    waiting = asyncio.create_task(prefill_client.post("/v1/completions", json=body))
    async with asyncio.timeout(60):
        while not waiting.done():
            await prefill_client.post("/abort_request", json={"rid": "abc"})

    assert (await waiting).json()["choices"][0]["finish_reason"] == "abort"
    # Its decode leg hangs, as it does with the engine.
    assert (await decode_client.post("/v1/completions", json=body)).status_code == 500
    await idle(prefill, decode)


async def test_sglang_survives_clients_that_leave(pair: Any) -> None:
    prefill, prefill_client, decode, decode_client = await pair("sglang")
    body = BODY | ROOM | {"bootstrap_port": prefill.handover.port, "max_tokens": 5000}
    legs = [
        asyncio.create_task(client.post("/v1/completions", json=body))
        for client in (prefill_client, decode_client)
    ]
    await until(lambda: decode.scheduler.running)
    for leg in legs:
        leg.cancel()
    await asyncio.gather(*legs, return_exceptions=True)

    await idle(prefill, decode)


async def test_sglang_decode_fails_when_its_prefill_engine_crashes(pair: Any) -> None:
    prefill, prefill_client, decode, decode_client = await pair("sglang", heartbeat_s=0.01)
    body = BODY | ROOM | {"bootstrap_port": prefill.handover.port}
    leg = asyncio.create_task(decode_client.post("/v1/completions", json=body))
    await until(lambda: decode.scheduler.running)
    await asyncio.sleep(0.02)
    port = prefill.handover.port
    prefill.inject(Fault("crash"))
    assert (await leg).status_code == 500
    prefill.accept()
    await asyncio.sleep(0.05)

    assert prefill.handover.port == port
    _, answer = await both(prefill_client, decode_client, port)
    assert answer.status_code == 200


async def nixl(prefill: Any, decode: Any, **more: Any) -> Any:
    """Requests of a router to vLLM: one leg after the other."""
    first = await prefill.post(
        "/v1/completions",
        json=BODY | {"max_tokens": 1, "kv_transfer_params": ASK},
        headers={"x-request-id": "r"},
    )
    params = first.json()["kv_transfer_params"]
    answer = await decode.post("/v1/completions", json=BODY | {"kv_transfer_params": params} | more)
    return first, answer


async def test_nixl_answers_as_one_engine_would(start: Any, pair: Any) -> None:
    prefill, prefill_client, decode, decode_client = await pair("nixl")
    first, answer = await nixl(prefill_client, decode_client)
    _, again = await nixl(prefill_client, decode_client)

    params = first.json()["kv_transfer_params"]
    assert params["remote_request_id"] == "cmpl-r"
    assert params["remote_num_tokens"] == 300
    assert answer.json()["kv_transfer_params"] is None
    assert answer.json()["choices"][0]["text"] == await alone(start, dialect="vllm")
    # The decode engine repeats the prefill engine's reuse.
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 288
    await idle(prefill, decode)


async def test_metrics_tell_what_was_handed_over(pair: Any) -> None:
    """300 tokens are received cold; of the second, 288 are here."""
    prefill, prefill_client, _, decode_client = await pair("nixl", lease_s=3)
    for _ in range(2):
        await nixl(prefill_client, decode_client)
    await prefill_client.post("/v1/completions", json=BODY | {"max_tokens": 1, "kv_transfer_params": ASK})
    await idle(prefill)
    given, received = [(await client.get("/metrics")).text for client in (prefill_client, decode_client)]

    assert 'nixl_num_kv_expired_reqs_total{engine="0",model_name="emulated"} 1' in given
    labels = 'engine="0",model_name="emulated"'
    for name, more, value in (
        ("external_prefix_cache_hits_total", "", 312),
        ("prompt_tokens_by_source_total", ',source="external_kv_transfer"', 312),
        ("prompt_tokens_by_source_total", ',source="local_cache_hit"', 288),
        ("prompt_tokens_by_source_total", ',source="local_compute"', 0),
        ("prompt_tokens_cached_by_source_total", ',source="p2p"', 312),
        ("nixl_xfer_time_seconds_count", "", 2),
    ):
        assert f"vllm:{name}{{{labels}{more}}} {value}\n" in received


async def test_nixl_keeps_the_blocks_until_they_are_pulled(pair: Any) -> None:
    prefill, prefill_client, _, _ = await pair("nixl", lease_s=2)
    await prefill_client.post("/v1/completions", json=BODY | {"max_tokens": 1, "kv_transfer_params": ASK})

    assert prefill.scheduler.used_tokens >= 300
    assert prefill.scheduler.running == 0
    await idle(prefill)
    assert prefill.handover.counters.expired == 1


async def test_nixl_without_params_computes_the_prompt_itself(pair: Any) -> None:
    _, _, decode, decode_client = await pair("nixl")
    answer = await decode_client.post("/v1/completions", json=BODY)

    assert answer.status_code == 200
    assert decode.handover.counters.received_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_nixl_with_a_wrong_engine_is_an_error(pair: Any, stream: bool) -> None:
    prefill, prefill_client, decode, decode_client = await pair("nixl", lease_s=0.1)
    first, _ = await nixl(prefill_client, decode_client)
    params = first.json()["kv_transfer_params"] | {"remote_engine_id": "other"}
    answer = await decode_client.post(
        "/v1/completions", json=BODY | {"kv_transfer_params": params, "stream": stream}
    )

    if stream:
        # vLLM has sent its head by then.
        assert answer.status_code == 200
        assert "InternalServerError" in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "InternalServerError"
    await idle(prefill, decode)


async def test_a_prefill_leg_may_be_made_to_leave_nothing(pair: Any) -> None:
    """The decode leg computes the prompt itself, as vLLM does."""
    prefill, prefill_client, decode, decode_client = await pair("nixl")
    prefill.inject(Fault("no_params", count=1))
    first, answer = await nixl(prefill_client, decode_client)
    later, _ = await nixl(prefill_client, decode_client)

    assert first.json()["kv_transfer_params"] is None
    assert answer.json()["usage"]["completion_tokens"] == 20
    assert later.json()["kv_transfer_params"]
    await idle(prefill, decode)


@pytest.mark.parametrize("protocol", ["sglang", "nixl"])
async def test_a_transfer_that_is_lost_fails_both_sides_at_once(pair: Any, protocol: str) -> None:
    prefill, prefill_client, decode, decode_client = await pair(protocol, lease_s=0.05)
    prefill.inject(Fault("fail_transfer", count=1))
    if protocol == "nixl":
        _, answer = await nixl(prefill_client, decode_client)
    else:
        first, answer = await both(prefill_client, decode_client, prefill.handover.port)
        assert "injected fault" in first.text
        assert first.status_code == 500

    assert answer.status_code == 500
    await idle(prefill, decode)
    assert set(prefill.handover.state().values()) | set(decode.handover.state().values()) == {0}


async def test_an_engine_tells_what_it_holds_for_others(pair: Any) -> None:
    """A transfer that stalls keeps everything where it is until the client of the decode leg leaves."""
    prefill, prefill_client, decode, decode_client = await pair("nixl")
    prefill.inject(Fault("stall_transfer"))
    leg = asyncio.create_task(nixl(prefill_client, decode_client))
    await until(lambda: prefill.stats()["handover"]["asked"])
    assert prefill.stats()["held"] == 1
    assert prefill.stats()["handover"] == {"giving": 0, "receiving": 0, "kept": 1, "asked": 1}
    assert decode.stats()["handover"]["receiving"] == 1
    leg.cancel()

    await idle(prefill, decode)
    assert prefill.stats()["held"] == 0
    assert len(decode.stats()["aborted_ids"]) == decode.stats()["aborted"] == 1


async def test_a_decode_engine_tells_of_the_blocks_that_it_pulled(start: Any) -> None:
    events = KvEventsSettings("tcp://*:0")
    _, prefill_client = await start(
        dialect="vllm", handover=HandoverSettings(protocol="nixl", part="both"), block_tokens=16
    )
    decode, decode_client = await start(
        dialect="vllm",
        handover=HandoverSettings(protocol="nixl", part="both"),
        block_tokens=16,
        kv_events=events,
    )
    await nixl(prefill_client, decode_client)

    assert decode.scheduler.held_tokens >= 288


async def test_mooncake_answers_as_one_engine_would(start: Any, pair: Any) -> None:
    prefill, prefill_client, decode, decode_client = await pair("mooncake")
    port = prefill.handover.port
    async with httpx.AsyncClient() as client:
        query = (await client.get(f"http://127.0.0.1:{port}/query")).json()
    fetch = {"do_remote_prefill": True, "transfer_id": "t1", "remote_engine_id": query["0"]["engine_id"]}
    fetch["remote_bootstrap_addr"] = f"http://127.0.0.1:{port}"
    give = ASK | {"transfer_id": "t1"}
    first, answer = await asyncio.gather(
        prefill_client.post("/v1/completions", json=BODY | {"max_tokens": 1, "kv_transfer_params": give}),
        decode_client.post("/v1/completions", json=BODY | {"kv_transfer_params": fetch}),
    )

    assert first.json()["kv_transfer_params"] is None
    assert answer.json()["choices"][0]["text"] == await alone(start, dialect="vllm")
    await idle(prefill, decode)


async def launch(*arguments: str) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMMAND, "--port", "0", *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = (await process.stdout.readline()).decode()
    return process, re.findall(r"http://\S+", line)[0]


async def test_engines_of_two_processes_hand_over() -> None:
    sglang = [("--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "0")]
    sglang.append(("--disaggregation-mode", "decode"))
    config = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    vllm = [("--dialect", "vllm", "--kv-transfer-config", config, "--side-channel-port", "0")] * 2
    processes, urls = zip(
        *await asyncio.gather(*(launch(*arguments) for arguments in (*sglang, *vllm))), strict=True
    )
    try:
        async with httpx.AsyncClient() as client:
            info = (await client.get(f"{urls[0]}/server_info")).json()
            body = BODY | ROOM | {"bootstrap_port": info["disaggregation_bootstrap_port"]}
            legs = (client.post(f"{url}/v1/completions", json=body) for url in urls[:2])
            _, answer = await asyncio.gather(*legs)
            assert answer.json()["usage"]["completion_tokens"] == 20
            first = await client.post(
                f"{urls[2]}/v1/completions", json=BODY | {"max_tokens": 1, "kv_transfer_params": ASK}
            )
            params = first.json()["kv_transfer_params"]
            answer = await client.post(
                f"{urls[3]}/v1/completions", json=BODY | {"kv_transfer_params": params}
            )
            assert answer.json()["usage"]["completion_tokens"] == 20
            processes[2].kill()
            await processes[2].wait()
            answer = await client.post(
                f"{urls[3]}/v1/completions",
                json=BODY | {"prompt": PROMPT[::-1], "kv_transfer_params": params},
            )
            assert answer.status_code == 500
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def switched(client: Any, role: str) -> tuple[int, Any]:
    answer = await client.post("/pd_role_switch", json={"new_role": role})
    return answer.status_code, answer.json()


async def test_sglang_engines_exchange_their_parts_and_answer_on(start: Any, pair: Any) -> None:
    """Its caches are lost with its part; the arguments of the start stay, and its internal states change."""
    first, first_client, second, second_client = await pair("sglang", switches=True)
    await both(first_client, second_client, first.handover.port)
    await idle(first, second)
    assert first.scheduler.held_tokens > 0

    for client, role, before in ((first_client, "decode", "prefill"), (second_client, "prefill", "decode")):
        told = {"success": True, "message": "ok", "old_role": before, "new_role": role}
        assert await switched(client, role) == (200, told)
        assert await switched(client, role) == (
            200,
            told | {"old_role": role, "message": "already in target role"},
        )
    info = (await first_client.get("/server_info")).json()
    assert (info["disaggregation_mode"], info["internal_states"][0]["disaggregation_mode"]) == (
        "prefill",
        "decode",
    )
    assert first.scheduler.held_tokens == 0

    _, answer = await both(second_client, first_client, second.handover.port, bootstrap_room=8)
    assert answer.json()["choices"][0]["text"] == await alone(start)
    assert answer.json()["usage"]["prompt_tokens_details"] is None
    await idle(first, second)


async def test_sglang_switches_its_part_neither_unasked_nor_while_it_has_work(start: Any, pair: Any) -> None:
    _, plain = await start()
    _, fixed, _, _ = await pair("sglang")
    for client in (plain, fixed):
        status, told = await switched(client, "decode")
        assert (status, told["success"], told["safe_to_restore"]) == (400, False, True)
        assert told["message"] == "--enable-pd-role-switch is not set on this instance"

    prefill, client, _, _ = await pair("sglang", switches=True)
    assert (await switched(client, "both"))[1]["message"] == "invalid new_role='both'"
    waiting = asyncio.create_task(client.post("/v1/completions", json=BODY | ROOM))
    await until(lambda: prefill.handover.state()["rooms"])
    status, told = await switched(client, "decode")
    assert (status, told["safe_to_restore"]) == (400, True)
    assert told["message"] == "instance is not idle; drain all requests before switching"
    assert prefill.role == "prefill"
    waiting.cancel()


async def test_of_two_switches_at_once_the_second_is_refused_for_the_moment(pair: Any) -> None:
    _, client, _, _ = await pair("sglang", switches=True)
    answers = await asyncio.gather(switched(client, "decode"), switched(client, "decode"))

    assert sorted(status for status, _ in answers) in ([200, 200], [200, 400])
    for status, told in answers:
        assert status == 200 or told["message"] == "another role switch is already in progress"


async def test_an_engine_whose_new_part_cannot_listen_says_that_it_must_be_restarted(pair: Any) -> None:
    first, _, second, client = await pair("sglang", switches=True)
    second._side_port = first.handover.port
    status, told = await switched(client, "prefill")

    assert (status, told["success"], told["safe_to_restore"]) == (400, False, False)
    assert "restart required" in told["message"]
