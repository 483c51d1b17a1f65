"""Models through a real gateway: aliases in bodies, forms, lists, explanations, logs and decisions."""

import json
import logging
from typing import Any

import openai
import pytest
from fakes.echo_worker import EchoWorker
from fakes.running import Fleet, RunningGateway, until


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
