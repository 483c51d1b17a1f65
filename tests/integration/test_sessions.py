"""Sessions, stored responses and forwarded headers, by SDKs, through real gateways on real sockets."""

import json
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from fakes.echo_worker import EchoWorker, Got
from fakes.running import Fleet, RunningGateway, until
from redis import Redis

from router.shared import Keys
from router.tenants.keys import digest_of

IDLE_TIES = {"policy": "least_load"}


class Engine(EchoWorker):
    """Serves the Responses API as engines do: it stores what it answered, in its own memory."""

    def __init__(self, name: str) -> None:
        super().__init__("m")
        self.name, self.stored = name, dict[str, str]()

    def said(self, got: Got) -> tuple[int, dict[str, Any]]:
        if not got.path.startswith("/v1/responses"):
            return super().said(got)
        if got.method == "POST" and got.path == "/v1/responses":
            asked = json.loads(bytes(got.body))
            previous = asked.get("previous_response_id")
            if previous is not None and previous not in self.stored:
                return 404, missing(previous)
            response_id = f"resp_{self.name}{len(self.stored)}"
            self.stored[response_id] = "completed"
            return 200, response(response_id, previous)
        response_id = got.path.split("/")[3]
        if response_id not in self.stored:
            return 404, missing(response_id)
        if got.method == "DELETE":
            del self.stored[response_id]
            return 200, {"id": response_id, "object": "response", "deleted": True}
        if got.path.endswith("/cancel"):
            self.stored[response_id] = "cancelled"
        return 200, response(response_id, None) | {"status": self.stored[response_id]}


def missing(response_id: str) -> dict[str, Any]:
    return {
        "error": {"message": f"Response with id '{response_id}' not found.", "type": "invalid_request_error"}
    }


def response(response_id: str, previous: str | None) -> dict[str, Any]:
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "previous_response_id": previous,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


async def in_front_of(fleet: Fleet, /, *engines: EchoWorker, **sections: dict[str, Any]) -> RunningGateway:
    gateway = await fleet.gateway(*(each.url for each in engines), **sections)
    registry = gateway.process.registry
    await until(lambda: all(local.models for local in registry.all()))
    await until(lambda: len(registry.eligible(None, registry.now_us())) == len(engines))
    return gateway


def sdk(gateway: RunningGateway, key: str = "none") -> openai.AsyncOpenAI:
    client = httpx.AsyncClient(trust_env=False)
    return openai.AsyncOpenAI(api_key=key, base_url=f"{gateway.url}/v1", max_retries=0, http_client=client)


async def test_a_stored_response_is_found_from_every_replica(fleet: Fleet) -> None:
    """A conversation over two replicas stays where its responses are; any of them gets and deletes it."""
    async with Engine("a") as one, Engine("b") as two, Engine("c") as three:
        gateways = [await in_front_of(fleet, one, two, three) for _ in range(2)]
        clients = [sdk(each) for each in gateways]
        for start in range(4):
            first = await clients[0].responses.create(model="m", input=f"Conversation {start}. " * 100)
            responses = gateways[0].process.responses
            await until(lambda responses=responses: not responses.due)
            keeper = first.id[:6]
            latest = first
            for turn in range(3):
                latest = await clients[1 - turn % 2].responses.create(
                    model="m", input=f"{start}, {turn}", previous_response_id=latest.id
                )
                assert latest.id.startswith(keeper)
                for each in gateways:
                    await until(lambda each=each: not each.process.responses.due)
            for client in clients:
                assert (await client.responses.retrieve(latest.id)).id == latest.id
            assert (await clients[0].responses.cancel(latest.id)).status == "cancelled"
            await clients[1].responses.delete(latest.id)
            with pytest.raises(openai.NotFoundError):
                await clients[0].responses.retrieve(latest.id)


async def test_a_response_whose_worker_is_gone_says_so(fleet: Fleet) -> None:
    async with Engine("a") as one, Engine("b") as two:
        gateways = [await in_front_of(fleet, one, two) for _ in range(2)]
        client = sdk(gateways[1])
        first = await sdk(gateways[0]).responses.create(model="m", input="Hello")
        await until(lambda: not gateways[0].process.responses.due)
        gone = one if first.id.startswith("resp_a") else two
        answer = await gateways[1].client.delete(f"/workers/{gone.worker_id}", params={"drain": "false"})
        assert answer.status_code < 300, answer.text
        for gateway in gateways:
            await until(lambda gateway=gateway: gateway.process.registry.get(gone.worker_id) is None)
        for asked in (
            client.responses.retrieve(first.id),
            client.responses.create(model="m", input="On", previous_response_id=first.id),
        ):
            with pytest.raises(openai.APIStatusError) as caught:
                await asked
            assert (caught.value.status_code, caught.value.code) == (410, "response_gone")


async def test_a_tenant_does_not_find_anothers_response(fleet: Fleet, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    lines = [f"  {name}: {{keys: [sha256:{digest_of(name.encode()).hex()}]}}\n" for name in ("acme", "other")]
    keys.write_text("tenants:\n" + "".join(lines))
    async with Engine("a") as engine:
        gateway = await in_front_of(
            fleet, engine, tenancy={"keys_file": str(keys)}, server={"api_key": "admin"}
        )
        acme, other = sdk(gateway, "acme"), sdk(gateway, "other")
        first = await acme.responses.create(model="m", input="Hello")
        assert (await acme.responses.retrieve(first.id)).id == first.id
        seen = len(engine.got)
        for asked in (
            other.responses.retrieve(first.id),
            other.responses.cancel(first.id),
            other.responses.create(model="m", input="On", previous_response_id=first.id),
        ):
            with pytest.raises(openai.NotFoundError) as caught:
                await asked
            assert caught.value.code == "response_not_found"
        assert len(engine.got) == seen


async def test_a_session_stays_where_it_was_until_it_ends(fleet: Fleet) -> None:
    """Prompts that share nothing: only the name of the session says that they belong together."""
    async with EchoWorker() as one, EchoWorker() as two, EchoWorker() as three:
        gateway = await in_front_of(fleet, one, two, three)
        client = sdk(gateway)
        homes: set[str] = set()
        for session in range(8):
            served: set[str] = set()
            for turn in range(4):
                raw = await client.chat.completions.with_raw_response.create(
                    model="m",
                    messages=[{"role": "user", "content": f"{session} {turn} " * 500}],
                    extra_headers={"x-session-id": f"s-{session}"},
                )
                served.add(raw.headers["x-cacheway-worker"])
            assert len(served) == 1, session
            homes |= served
        assert len(homes) > 1
        answer = await gateway.client.get("/decisions", params={"limit": 1})
        assert answer.json()["decisions"][0]["session"] == "s-7"
        for finished in (True, False):
            answer = await gateway.client.post("/finish_session", params={"session_id": "s-7"})
            assert answer.json() == {"session_id": "s-7", "finished": finished}


async def ask(gateways: list[RunningGateway], number: int, text: str, session: str, **fields: Any) -> str:
    """Send a request to one of the gateways once all see the workers idle; return its worker."""
    gateway = gateways[number]
    await until(lambda: not any(each.process.fleet.loads.inflight_requests.sum() for each in gateways))
    body = {"model": "m", "messages": [{"role": "user", "content": text * 300}], **fields}
    headers = {"x-session-id": session} if session else {}
    answer = await gateway.client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-cacheway-worker"]


async def learned_everywhere(gateways: list[RunningGateway], sessions: int) -> None:
    await until(lambda: all(len(each.process.sessions) == sessions for each in gateways))


async def test_a_session_goes_on_at_its_worker_from_every_replica_until_it_ends(fleet: Fleet) -> None:
    """Its first turn meets a busy worker, so it is beside the one that all replicas would choose by the hash.

    Prompts share nothing, so replicas know from each other only where the session was. The other workers are
    held back for the first turns by draining them. To the policy idle workers cost the same.
    """
    async with EchoWorker() as one, EchoWorker() as two, EchoWorker() as three:
        workers = [one, two, three]
        gateways = [await in_front_of(fleet, *workers, placement=IDLE_TIES) for _ in range(2)]
        registry = gateways[0].process.registry
        for held in (one, two):
            answer = await gateways[0].client.post(f"/workers/{held.worker_id}/drain")
            assert answer.status_code < 300, answer.text
        names = [f"s-{number}" for number in range(6)]
        await until(lambda: len(registry.eligible(None, registry.now_us())) == 1)
        for name in names:
            assert await ask(gateways, 0, f"{name} 1 ", name) == three.worker_id
        await learned_everywhere(gateways, 6)
        for held in (one, two):
            answer = await gateways[0].client.post(f"/workers/{held.worker_id}/undrain")
            assert answer.status_code < 300, answer.text
        for gateway in gateways:
            at = gateway.process.registry
            await until(lambda at=at: len(at.eligible(None, at.now_us())) == 3)
        for name in names:
            assert await ask(gateways, 1, f"{name} 2 ", name) == three.worker_id
        for finished in (True, False):
            answer = await gateways[1].client.post("/finish_session", params={"session_id": "s-0"})
            assert answer.json() == {"session_id": "s-0", "finished": finished}
        await learned_everywhere(gateways, 5)
        later = {await ask(gateways, 0, f"{name} 3 ", name) for name in names[1:]}
        assert later == {three.worker_id}


async def test_without_redis_a_replica_follows_its_own_sessions(fleet: Fleet) -> None:
    """The namespace's stream has another type, so nothing can be told or heard; requests do not notice."""
    async with EchoWorker() as one, EchoWorker() as two:
        gateways = [await in_front_of(fleet, one, two, placement=IDLE_TIES) for _ in range(2)]
        keys = Keys(gateways[0].process.settings.shared.namespace)
        with Redis.from_url(fleet.redis_url) as redis:
            redis.set(keys.sessions, "mine")
        for number in range(4):
            served = {await ask(gateways, 0, f"{number} {turn} ", f"s-{number}") for turn in range(3)}
            assert len(served) == 1
        assert len(gateways[0].process.sessions) == 4
        assert len(gateways[1].process.sessions) == 0


async def test_a_body_names_a_session_as_a_header_does(fleet: Fleet) -> None:
    async with EchoWorker() as one, EchoWorker() as two, EchoWorker() as three:
        gateways = [await in_front_of(fleet, one, two, three, placement=IDLE_TIES) for _ in range(2)]
        uuid = "57a121ec-f78c-48c3-a745-e3036a3ecc33"
        user_id = json.dumps({"device_id": "d", "account_uuid": "", "session_id": uuid})
        home = await ask(gateways, 0, "1 ", uuid)
        await learned_everywhere(gateways, 1)
        named: tuple[dict[str, Any], ...] = (
            {"session_id": uuid},
            {"metadata": {"session_id": uuid}},
            {"metadata": {"user_id": user_id}},
            {"metadata": {"user_id": f"user_x_account__session_{uuid}"}},
            {"prompt_cache_key": uuid},
        )
        for number, fields in enumerate(named):
            assert await ask(gateways, 1, f"{number} ", "", **fields) == home
        assert len(gateways[1].process.sessions) == 1
        await ask(gateways, 1, "x ", "", user="u", metadata={"user_id": "u"})
        assert len(gateways[1].process.sessions) == 1
        hostile: tuple[Any, ...] = (5, None, "x" * 10_000, "ü", "a\u0000b", ["s"], {"a": {"b": 1}})
        for value in hostile:
            names = ("session_id", "metadata", "user", "safety_identifier")
            await ask(gateways, 1, "y ", "", **dict.fromkeys(names, value))
        assert len(gateways[1].process.sessions) == 1


async def test_headers_pass_as_the_setting_says(fleet: Fleet) -> None:
    async with EchoWorker() as engine:
        gateway = await in_front_of(fleet, engine)
        client = anthropic.AsyncAnthropic(api_key="none", base_url=gateway.url)
        sent = {
            "anthropic-beta": "tools-1",
            "x-claude-code-session-id": "c-1",
            "baggage": "a=b",
            "x-team": "core",
            "x-data-parallel-rank": "1",
            "cookie": "secret=1",
        }

        async def ask() -> dict[str, str]:
            await client.messages.with_raw_response.create(
                model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}], extra_headers=sent
            )
            return engine.got[-1].headers

        seen = await ask()
        assert {name: seen.get(name) for name in sent} == {
            **sent,
            **dict.fromkeys(("x-team", "x-data-parallel-rank", "cookie")),
        }
        assert seen["anthropic-version"]
        assert {"host", "content-length", "x-request-id", "x-cacheway-hops"} <= seen.keys()
        assert "user-agent" not in seen
        change = {"values": {"upstream.forward_headers": ["content-type", "x-team", "user-*"]}}
        assert (await gateway.client.patch("/settings", json=change)).status_code == 200
        seen = await ask()
        assert (seen.get("x-team"), "baggage" in seen, "user-agent" in seen) == ("core", False, True)
        refused = {"values": {"upstream.forward_headers": ["x-data-parallel-rank"]}}
        answer = await gateway.client.patch("/settings", json=refused)
        assert (answer.status_code, "never passes" in answer.text) == (400, True)


async def test_an_explanation_takes_a_session(fleet: Fleet) -> None:
    async with EchoWorker() as one, EchoWorker() as two, EchoWorker() as three:
        gateway = await in_front_of(fleet, one, two, three)
        body = {"model": "m", "messages": [{"role": "user", "content": "Something else. " * 200}]}
        for number in range(5):
            headers = {"x-session-id": f"s-{number}"}
            served = (await gateway.client.post("/v1/chat/completions", json=body, headers=headers)).headers
            asked = {"request": {"model": "m", "messages": []}, "session": f"s-{number}"}
            said = (await gateway.client.post("/explain", json=asked)).json()
            assert said["decision"]["worker"] == served["x-cacheway-worker"]
            assert said["request"]["session"] == f"s-{number}"
