"""Models through a real gateway: aliases in bodies, forms, lists, explanations, logs and decisions."""

import asyncio
import json
import logging
from typing import Any

import httpx
import openai
import pytest
from fakes.echo_worker import EchoWorker
from fakes.lora_worker import LoraWorker
from fakes.running import Fleet, RunningGateway, until
from fakes.web_socket import Socket
from wsproto.events import AcceptConnection

from router.models import ModelReader, loader


async def in_front_of(fleet_of: Fleet, /, *workers: EchoWorker, **sections: dict[str, Any]) -> RunningGateway:
    """A gateway that found its workers well, and knows their models."""
    gateway = await fleet_of.gateway(*(each.url for each in workers), **sections)
    registry = gateway.process.registry
    await until(lambda: all(local.models for local in registry.all()))
    await until(lambda: len(registry.eligible(None, registry.now_us())) == len(workers))
    return gateway


def asked(name: str, text: str = "hello") -> dict[str, Any]:
    return {"model": name, "messages": [{"role": "user", "content": text}]}


async def changed(gateway: RunningGateway, values: dict[str, Any]) -> None:
    answer = await gateway.client.patch("/settings", json={"values": values})
    assert answer.status_code == 200, answer.text


async def test_clients_ask_for_other_names_than_the_fleet_serves(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with EchoWorker("mimo") as mimo, EchoWorker("other") as other:
        gateway = await in_front_of(fleet, mimo, other)
        assert (await gateway.client.post("/v1/messages", json=asked("claude-x"))).status_code == 404
        await changed(gateway, {"models.aliases": {"claude-*": "mimo", "gpt-4o": "other", "lost": "gone"}})

        for name, worker, served in (("claude-x", mimo, "mimo"), ("gpt-4o", other, "other")):
            for size in (10, 400_000):
                body = json.dumps(asked(name, "x" * size))
                answer = await gateway.client.post("/v1/messages", content=body)
                assert answer.status_code == 200
                assert worker.got[-1].body.decode() == body.replace(f'"{name}"', f'"{served}"')
        assert (await gateway.client.post("/v1/messages", json=asked("lost"))).status_code == 404

        (newest, *_) = (await gateway.client.get("/decisions?model=other")).json()["decisions"]
        assert newest["model_choice"] == {"asked_model": "gpt-4o", "alias": "gpt-4o"}
        question = {"request": asked("claude-x")}
        explained = (await gateway.client.post("/explain", json=question)).json()
        assert explained["request"]["model"] == "mimo"
        assert explained["request"]["model_choice"] == {"asked_model": "claude-x", "alias": "claude-*"}
        assert explained["decision"]["worker"] == mimo.worker_id
        await until(gateway.idle)


async def test_lists_have_the_exact_aliases(fleet: Fleet) -> None:
    async with EchoWorker("mimo") as mimo:
        gateway = await in_front_of(fleet, mimo)
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none")
        await changed(gateway, {"models.aliases": {"claude-*": "mimo", "gpt-4o": "mimo", "lost": "gone"}})
        assert [each.id async for each in client.models.list()] == ["gpt-4o", "mimo"]
        for name in ("gpt-4o", "claude-anything", "mimo"):
            assert (await client.models.retrieve(name)).id == name
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("lost")
        await changed(gateway, {"models.list_aliases": False})
        assert [each.id async for each in client.models.list()] == ["mimo"]
        await client.close()


@pytest.mark.parametrize("first", [True, False])
async def test_forms_are_renamed_wherever_the_model_stands(fleet: Fleet, first: bool) -> None:
    async with EchoWorker("mimo") as mimo:
        gateway = await in_front_of(
            fleet,
            mimo,
            models={"aliases": {"whisper-1": "mimo"}},
            upstream={"pass_through": ["/v1/more"]},
        )
        model = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n'
        file = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"a" * 200_000
        form = (model + file if first else file + b"\r\n" + model.removesuffix(b"\r\n")) + b"\r\n--b--\r\n"
        headers = {"content-type": "multipart/form-data; boundary=b"}
        for path in ("/v1/audio/transcriptions", "/v1/more"):
            answer = await gateway.client.post(path, content=form, headers=headers)
            assert answer.status_code == 200, answer.text
            assert bytes(mimo.got[-1].body) == form.replace(b"whisper-1", b"mimo")
        await until(gateway.idle)


@pytest.mark.parametrize(
    ("rule", "status", "codes"),
    [("single", 200, {"mimo": 200, "": 200}), ("refuse", 404, {"mimo": 200, "": 200}), ("any", 200, {})],
)
async def test_forms_and_queries_follow_the_rule_for_models_that_no_worker_lists(
    fleet: Fleet, rule: str, status: int, codes: dict[str, int]
) -> None:
    async with EchoWorker("mimo") as mimo:
        gateway = await in_front_of(
            fleet, mimo, fleet={"unlisted_models": rule}, upstream={"pass_through": ["/v1/more"]}
        )
        headers = {"content-type": "multipart/form-data; boundary=b"}
        raw = {"content-type": "application/octet-stream"}
        for name, expected in {"whisper-1": status, **codes}.items():
            field = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n%b\r\n' % name.encode()
            file = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nabc\r\n'
            for form in (field + file + b"--b--\r\n", file + field + b"--b--\r\n"):
                for path in ("/v1/audio/transcriptions", "/v1/more"):
                    answer = await gateway.client.post(path, content=form, headers=headers)
                    assert answer.status_code == expected, (name, path, answer.text)
                    assert expected != 200 or bytes(mimo.got[-1].body) == form
            target = f"/v1/more?x=1&model={name}"
            answer = await gateway.client.post(target, content=b"\x00{", headers=raw)
            assert answer.status_code == expected
            assert expected != 200 or mimo.got[-1].target == target
        await until(gateway.idle)


async def test_an_alias_in_a_query_is_replaced_and_nothing_else(fleet: Fleet) -> None:
    async with EchoWorker("mimo") as mimo, EchoWorker("a b") as other:
        gateway = await in_front_of(
            fleet,
            mimo,
            other,
            models={"aliases": {"gpt-realtime": "mimo", "x": "a b"}},
            upstream={"pass_through": ["/v1/more"]},
        )
        raw = {"content-type": "text/plain"}
        for name, worker, served in (("gpt-realtime", mimo, "mimo"), ("x", other, "a%20b")):
            for path in ("/v1/more", "/v1/realtime"):
                target = f"{path}?v=%41&model={name}&w=+"
                if path == "/v1/more":
                    answer = await gateway.client.post(target, content=b"model=mimo", headers=raw)
                    assert answer.status_code == 200
                else:
                    socket = await Socket.at(gateway.url, target)
                    assert isinstance(await socket.event(), AcceptConnection)
                    await socket.close()
                assert worker.got[-1].target == f"{path}?v=%41&model={served}&w=+"
        twice = await gateway.client.get("/v1/more?model=mimo&model=x")
        assert (twice.status_code, twice.json()["error"]["param"]) == (400, "model")
        (newest, *_) = (await gateway.client.get("/decisions?model=mimo")).json()["decisions"]
        assert newest["model_choice"] == {"asked_model": "gpt-realtime", "alias": "gpt-realtime"}
        await until(gateway.idle)


async def test_a_canary_takes_its_share_and_is_no_obstacle(fleet: Fleet) -> None:
    async with EchoWorker("mimo") as old, EchoWorker("mimo") as new:
        gateway = await in_front_of(fleet, old)
        added = {"url": new.url, "labels": {"version": "v2"}}
        assert (await gateway.client.post("/workers", json=added)).status_code in (200, 201, 202)
        registry = gateway.process.registry
        await until(lambda: len(registry.eligible("mimo", registry.now_us())) == 2)
        await changed(gateway, {"models.splits": {"mimo": {"ratio": 0.5, "label": "version=v2"}}})

        texts = [f"{number} " * 1000 for number in range(30)]
        for _ in range(2):
            for text in texts:
                answer = await gateway.client.post("/v1/chat/completions", json=asked("mimo", text))
                assert answer.status_code == 200
        by_worker = [{bytes(got.body) for got in worker.got} for worker in (old, new)]
        assert [len(worker.got) for worker in (old, new)] == [2 * len(bodies) for bodies in by_worker]
        assert all(by_worker)
        assert by_worker[0].isdisjoint(by_worker[1])

        text = json.loads(new.got[0].body)["messages"][0]["content"]
        explained = (await gateway.client.post("/explain", json={"request": asked("mimo", text)})).json()
        assert explained["decision"]["worker"] == new.worker_id
        assert explained["request"]["model_choice"]["split"] == "canary"
        assert [(each["worker"], each["reason"]) for each in explained["not_candidates"]] == [
            (old.worker_id, "other_part")
        ]

        assert (await gateway.client.delete(f"/workers/{new.worker_id}")).status_code == 202
        answer = await gateway.client.post("/v1/chat/completions", json=asked("mimo", text))
        assert (answer.status_code, answer.json()["worker"]) == (200, old.worker_id)
        scraped = (await gateway.client.get("/metrics")).text
        assert 'cacheway_model_splits_total{model="mimo",part="canary_elsewhere"} 1' in scraped
        await until(gateway.idle)


def declared(*names: str, workers: int = 1) -> dict[str, Any]:
    return {name: {"path": f"/adapters/{name}", "base": "mimo", "workers": workers} for name in names}


def wanted(gateway: RunningGateway, name: str) -> list[str]:
    """Workers that should hold an adapter, as a gateway sees it."""
    reader = gateway.process.gateway.reader
    assert isinstance(reader, ModelReader)
    assert reader.adapters is not None
    return [local.worker.worker_id for local in reader.adapters.wanted(name)]


async def ask(gateway: RunningGateway, name: str) -> httpx.Response:
    return await gateway.client.post("/v1/chat/completions", json=asked(name))


@pytest.mark.parametrize("sglang", [False, True])
async def test_a_cold_adapter_is_loaded_once_for_all_that_ask_for_it(fleet: Fleet, sglang: bool) -> None:
    async with LoraWorker(sglang=sglang) as one, LoraWorker(sglang=sglang) as two:
        gateway = await in_front_of(fleet, one, two, models={"adapters": declared("sql")})
        listed = (await gateway.client.get("/v1/models")).json()["data"]
        assert [(each["id"], each["workers"]) for each in listed] == [("mimo", 2), ("sql", 0)]
        explained = (await gateway.client.post("/explain", json={"request": asked("sql")})).json()
        assert "No worker has the adapter sql" in explained["decision"]["why"]

        for worker in (one, two):
            worker.opens.clear()
        asking = [asyncio.create_task(ask(gateway, "sql")) for _ in range(8)]
        await until(lambda: bool(one.loads or two.loads))
        for worker in (one, two):
            worker.opens.set()
        answers = await asyncio.gather(*asking)
        assert [answer.status_code for answer in answers] == [200] * 8
        assert sorted([one.loads, two.loads]) == [[], ["sql"]]
        holder = one if one.loads else two
        assert {answer.json()["worker"] for answer in answers} == {holder.worker_id}

        explained = (await gateway.client.post("/explain", json={"request": asked("sql")})).json()
        assert explained["decision"]["worker"] == holder.worker_id
        assert explained["request"]["model_choice"] == {"adapter": "sql"}
        assert (await ask(gateway, "mimo:sql")).json()["worker"] == holder.worker_id
        await until(gateway.idle)


async def test_a_worker_holds_few_adapters_and_loses_the_one_used_longest_ago(fleet: Fleet) -> None:
    async with LoraWorker() as worker:
        rules = {"adapters": declared("a", "b", "c"), "adapters_per_worker_max": 2}
        gateway = await in_front_of(fleet, worker, models=rules)
        for name in ("a", "b", "a", "c", "a", "b"):
            assert (await ask(gateway, name)).status_code == 200
        assert (worker.loads, worker.unloads) == (["a", "b", "c", "b"], ["b", "c"])


async def test_adapters_are_at_as_many_workers_as_they_should_be_at_every_replica_the_same(
    fleet: Fleet,
) -> None:
    async with LoraWorker() as one, LoraWorker() as two, LoraWorker() as three:
        workers = (one, two, three)
        rules = {"adapters": declared("sql", workers=2)}
        gateways = [await in_front_of(fleet, *workers, models=rules) for _ in range(2)]
        for gateway in gateways:
            assert (await ask(gateway, "sql")).status_code == 200
        await until(lambda: sum("sql" in worker.models for worker in workers) == 2)
        places = [wanted(gateway, "sql") for gateway in gateways]
        assert places[0] == places[1]
        assert {worker.worker_id for worker in workers if worker.loads} == set(places[0])


async def test_a_load_that_fails_is_told_and_tried_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "AGAIN_S", 0.0)
    async with LoraWorker() as worker:
        gateway = await in_front_of(fleet, worker, models={"adapters": declared("sql")})
        worker.broken = True
        answer = await ask(gateway, "sql")
        assert answer.status_code == 503
        assert "no such path" in answer.json()["error"]["message"]
        assert gateway.process.gateway.sending.inflight == 0
        worker.broken = False
        assert (await ask(gateway, "sql")).status_code == 200
        scraped = (await gateway.client.get("/metrics")).text
        assert 'cacheway_adapter_loads_total{outcome="failed"} 1' in scraped
        assert (await ask(gateway, "mimo")).status_code == 200


async def test_a_second_fleet_gets_copies_and_its_troubles_are_its_own(fleet: Fleet) -> None:
    async with EchoWorker("mimo") as worker, EchoWorker("v2") as second:
        rules = {"mirror_url": second.url, "mirror_model": "v2", "mirror_key": "theirs", "mirror_ratio": 1.0}
        gateway = await in_front_of(fleet, worker, models=rules)
        headers = {"authorization": "Bearer client", "x-secret": "1"}
        answer = await gateway.client.post("/v1/messages", json=asked("mimo"), headers=headers)
        assert (answer.status_code, answer.json()["worker"]) == (200, worker.worker_id)
        await until(lambda: bool(second.got) and second.got[0].complete)
        (copy,) = second.got
        assert (copy.path, json.loads(copy.body)) == ("/v1/messages", asked("v2"))
        assert copy.headers["authorization"] == "Bearer theirs"
        assert "x-secret" not in copy.headers

        second.reads.clear()  # it takes nothing any more
        for _ in range(3):
            assert (await ask(gateway, "mimo")).status_code == 200
        await gateway.client.post("/explain", json={"request": asked("mimo")})
        assert len(worker.got) == 4
        await changed(gateway, {"models.mirror_ratio": 0.0})
        assert gateway.process.gateway.tokenizing is None
        refused = await gateway.client.patch("/settings", json={"values": {"models.mirror_url": "http://x"}})
        assert refused.status_code == 400
        second.reads.set()
