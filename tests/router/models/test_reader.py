"""Requests for an alias: the worker reads the model's name, and caches are shared."""

import json
from typing import Any

import pytest
from fakes.gateway import Bench

from router.engines import Description
from router.fleet import ServedModel
from router.gateway.endpoints import PASSED_THROUGH, Endpoint
from router.gateway.large import LARGE_BODY_BYTES, Parsing
from router.gateway.parsing import ParsedRequest
from router.models import ModelReader
from router.offsets import edited
from router.relaying.relay import listed, without_prompt
from router.settings import Settings
from router.tenant import ANONYMOUS, Tenant

SALTED = Tenant("acme", salt="0123456789abcdef", namespace=b"0123456789abcdef")


def reader(aliases: dict[str, str]) -> tuple[ModelReader, Bench]:
    bench = Bench()
    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("mimo"), ServedModel("mimo-pro")), Description())
    settings = Settings.model_validate({"models": {"aliases": aliases}})
    return ModelReader(settings, bench.core, bench.metrics, door=bench.door), bench


def ended(steps: Parsing) -> ParsedRequest:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def seen(body: bytes, parsed: ParsedRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(edited(body, parsed.edits)))
    return found


@pytest.mark.parametrize("tenant", [ANONYMOUS, SALTED])
@pytest.mark.parametrize("words", [500, LARGE_BODY_BYTES])
def test_an_alias_is_its_model_to_the_worker_and_to_caches(words: int, tenant: Tenant) -> None:
    models, _ = reader({"claude-*": "mimo"})
    bodies = [
        b'{"model" : "%b", "rid": "r", "messages": [{"role": "user", "content": "model %b"}]}'
        % (name, b"x" * words)
        for name in (b"claude-sonnet-4-5", b"mimo")
    ]
    asked, own = (models.parse(Endpoint.CHAT, body, tenant) for body in bodies)
    assert (asked.model, asked.paths, asked.key) == ("mimo", own.paths, own.key)
    assert asked.choice is not None
    assert asked.choice.told() == {"asked_model": "claude-sonnet-4-5", "alias": "claude-*"}
    assert own.choice is None
    assert seen(bodies[0], asked) == seen(bodies[1], own)
    assert ended(models.parse_in_steps(Endpoint.CHAT, bodies[0], tenant)) == asked


def test_a_split_is_drawn_by_the_session_of_a_request_wherever_its_name_is() -> None:
    """By a header, a field or `prompt_cache_key`; in one step and in many; and of a form."""
    bench = Bench()
    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("mimo"),), Description())
    split = {"mimo": {"ratio": 0.5, "label": "version=v2"}}
    settings = Settings.model_validate({"models": {"splits": split}})
    models = ModelReader(settings, bench.core, bench.metrics, door=bench.door)
    models.session_of = lambda parsed, headers: bench.sessions.name_of(parsed, headers)[0]

    def why(parsed: ParsedRequest) -> str:
        assert parsed.choice is not None
        return parsed.choice.told()["split_why"]

    def body(text: str, **fields: str) -> bytes:
        return json.dumps(
            {"model": "mimo", "messages": [{"role": "user", "content": text}], **fields}
        ).encode()

    headers = [(b"x-session-id", b"s")]
    found = {
        why(models.parse(Endpoint.CHAT, body("a"), ANONYMOUS, headers)),
        why(models.parse(Endpoint.CHAT, body("b", session_id="s"), ANONYMOUS)),
        why(models.parse(Endpoint.CHAT, body("c", prompt_cache_key="s"), ANONYMOUS)),
        why(ended(models.parse_in_steps(Endpoint.CHAT, body("d" * LARGE_BODY_BYTES), ANONYMOUS, headers))),
        why(models.chosen(without_prompt(Endpoint.MORE, "mimo", ANONYMOUS, b"0" * 16), headers)),
    }
    assert len(found) == 1
    assert found.pop().startswith("the hash of its session")
    assert "its prompt" in why(models.parse(Endpoint.CHAT, body("a"), ANONYMOUS))


@pytest.mark.parametrize(
    "endpoint", [Endpoint.MESSAGES, Endpoint.GENERATE, Endpoint.RESPONSES, *sorted(PASSED_THROUGH)]
)
def test_every_body_is_renamed(endpoint: Endpoint) -> None:
    models, _ = reader({"a": "mimo"})
    body = b'{"model":"a","text":"x","input":"x","messages":[],"model":"a"}'
    assert seen(body, models.parse(endpoint, body, ANONYMOUS))["model"] == "mimo"


def test_a_name_written_with_escapes_is_found_and_no_other_text_is_changed() -> None:
    models, _ = reader({"a": "mimo"})
    body = rb'{"m\u006fdel": "\u0061", "messages": [{"role": "user", "content": "\"model\": \"a\""}], "n": 1}'
    parsed = models.parse(Endpoint.CHAT, body, ANONYMOUS)
    assert b"".join(edited(body, parsed.edits)) == body.replace(rb'"\u0061"', b'"mimo"')


def test_a_request_without_a_model_has_no_alias() -> None:
    models, _ = reader({"*": "mimo"})
    assert models.parse(Endpoint.GENERATE, b'{"text": "x"}', ANONYMOUS).choice is None


def test_a_pattern_leaves_what_a_worker_lists() -> None:
    models, bench = reader({"mimo-*": "mimo"})
    body = b'{"model":"mimo-pro","messages":[]}'
    assert models.parse(Endpoint.CHAT, body, ANONYMOUS).edits == ()
    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("mimo"),), Description())
    assert seen(body, models.parse(Endpoint.CHAT, body, ANONYMOUS))["model"] == "mimo"


def test_a_form_has_the_model_that_serves_it() -> None:
    models, _ = reader({"whisper-*": "mimo"})
    form = without_prompt(Endpoint.TRANSCRIPTIONS, "whisper-1", ANONYMOUS, b"0" * 16)
    chosen = models.chosen(form)
    assert (chosen.model, chosen.choice is None) == ("mimo", False)
    assert models.chosen(chosen) == chosen


def test_rules_come_and_go_while_it_serves() -> None:
    models, _ = reader({})
    body = b'{"model":"claude-x","messages":[]}'
    assert (models.renames, models.parse(Endpoint.CHAT, body, ANONYMOUS).choice) == (False, None)
    models.use(Settings.model_validate({"models": {"aliases": {"claude-x": "mimo"}}}))
    assert models.renames
    assert models.parse(Endpoint.CHAT, body, ANONYMOUS).choice is not None
    models.use(Settings())
    assert models.parse(Endpoint.CHAT, body, ANONYMOUS).choice is None


@pytest.mark.parametrize("words", [500, LARGE_BODY_BYTES])
def test_a_canary_that_is_a_model_gets_its_requests_as_its_own(words: int) -> None:
    models, bench = reader({"claude-*": "mimo"})
    rules = {"aliases": {"claude-*": "mimo"}, "splits": {"mimo": {"ratio": 1.0, "model": "mimo-pro"}}}
    models.use(Settings.model_validate({"models": rules}))
    text = "x" * words
    body, own = (
        json.dumps({"model": name, "messages": [{"role": "user", "content": text}]}).encode()
        for name in ("claude-x", "mimo-pro")
    )
    asked = models.parse(Endpoint.CHAT, body, ANONYMOUS)
    assert seen(body, asked) == json.loads(own)
    assert (asked.model, asked.key) == ("mimo-pro", models.parse(Endpoint.CHAT, own, ANONYMOUS).key)
    assert asked.choice is not None
    told = asked.choice.told()
    assert (told["asked_model"], told["alias"], told["split"]) == ("claude-x", "claude-*", "canary")
    assert ended(models.parse_in_steps(Endpoint.CHAT, body, ANONYMOUS)).edits == asked.edits
    form = models.chosen(without_prompt(Endpoint.TRANSCRIPTIONS, "mimo", ANONYMOUS, b"0" * 16))
    assert form.model == "mimo-pro"

    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("mimo"),), Description())
    left = models.parse(Endpoint.CHAT, body, ANONYMOUS)
    assert left.model == "mimo"
    assert left.choice is not None
    assert "no worker of mimo-pro" in left.choice.told()["split_why"]
    left.choice.ended(None)
    assert b'model_splits_total{model="mimo",part="canary_elsewhere"} 1' in bench.metrics.exposition()[0]


@pytest.mark.parametrize(("engine", "written"), [("vllm", "sql"), ("sglang", "mimo:sql")])
@pytest.mark.parametrize("asked", ["sql", "mimo:sql", "analyst"])
def test_a_form_names_an_adapter_as_its_engine_does(engine: str, written: str, asked: str) -> None:
    bench = Bench()
    for local in bench.registry.all():
        served = (ServedModel("mimo"), ServedModel("sql", parent="mimo"))
        bench.registry.described(local, served, Description(engine=engine))
    rules = {"adapters": {"sql": {"path": "/sql", "base": "mimo"}}, "aliases": {"analyst": "sql"}}
    models = ModelReader(
        Settings.model_validate({"models": rules}), bench.core, bench.metrics, door=bench.door
    )
    chosen = models.chosen(without_prompt(Endpoint.TRANSCRIPTIONS, asked, ANONYMOUS, b"req-" + b"1" * 32))
    assert (chosen.model, listed(models, chosen).model) == (written, "sql")


@pytest.mark.parametrize("asked", ["mimo", "whisper-1"])
def test_a_form_is_split_by_the_model_that_serves_it(asked: str) -> None:
    """A fleet of one model takes any name."""
    bench = Bench()
    for local in bench.registry.all():
        bench.registry.described(local, (ServedModel("mimo"),), Description())
    rules = {"splits": {"mimo": {"ratio": 1.0, "label": "version=v2"}}}
    models = ModelReader(
        Settings.model_validate({"models": rules}), bench.core, bench.metrics, door=bench.door
    )
    chosen = models.chosen(without_prompt(Endpoint.TRANSCRIPTIONS, asked, ANONYMOUS, b"req-" + b"1" * 32))
    assert chosen.model == asked
    assert chosen.choice is not None
    assert chosen.choice.told()["split"] == "canary"
