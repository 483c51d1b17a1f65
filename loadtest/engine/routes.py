"""An engine's API: what each path does."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import orjson

from loadtest.engine import infos
from loadtest.engine.adapters import Adapters
from loadtest.engine.errors import RequestRefused, error_body
from loadtest.engine.generation import Generation
from loadtest.engine.handover import Handover
from loadtest.engine.intake import Intake, count_tokens_intake, decoded, tokenize_intake
from loadtest.engine.job import Job
from loadtest.engine.kv_feed import KvFeed
from loadtest.engine.metrics import Counters
from loadtest.engine.outputs import Output, choose_output
from loadtest.engine.replies.apis import APIS, Api
from loadtest.engine.replies.reply import Facts
from loadtest.engine.scheduler import Scheduler
from loadtest.engine.served import Extra, served_job
from loadtest.engine.server import Answer, Request
from loadtest.engine.settings import EngineSettings
from loadtest.engine.tokens import count, pack_ids, unpack_ids, unpack_text

_TEXT = b"text/plain; charset=utf-8"
_EXPOSITION = b"text/plain; version=0.0.4; charset=utf-8"


class Part(Protocol):
    """The engine's part in disaggregation, which it may switch."""

    @property
    def role(self) -> str:
        """``prefill``, ``decode``, or ``null`` without disaggregation."""

    def switch(self, role: str, answer: Answer) -> None:
        """Take another part, or answer why not."""


class Routes:
    """Answers to the requests of one engine; ``handover`` is None without disaggregation."""

    def __init__(
        self,
        settings: EngineSettings,
        scheduler: Scheduler,
        handover: Handover | None,
        feed: KvFeed | None,
        counters: Counters,
        created_unix_s: int,
        part: Part,
        adapters: Adapters,
    ) -> None:
        self._settings = settings
        self._vllm = settings.dialect == "vllm"
        self._scheduler = scheduler
        self._handover = handover
        self._counters = counters
        self._part, self._adapters = part, adapters
        self._created_unix_s = created_unix_s
        self._closed = False
        ours: dict[str, Callable[[Request, Answer], None]] = {
            "/health": lambda _, answer: answer.send(200, b"", _TEXT),
            "/ping": lambda _, answer: answer.send(200, b"", _TEXT),
            "/metrics": self._metrics,
            "/v1/models": self._json(lambda: infos.models(settings, created_unix_s, adapters.listed())),
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/v1/messages/count_tokens": self._count_tokens,
        }
        if self._vllm:
            ours |= {
                "/version": self._json(lambda: {"version": infos.VLLM_VERSION}),
                "/load": self._json(lambda: {"server_load": scheduler.running + scheduler.waiting}),
                "/reset_prefix_cache": self._reset_prefix_cache,
                "/kv_event_sources": self._json(lambda: {} if feed is None else feed.vllm_sources()),
            }
        else:
            server_info = self._json(
                lambda: infos.server_info(settings, scheduler, handover, feed, part.role)
            )
            model_info = self._json(lambda: infos.model_info(settings))
            ours |= {
                "/health_generate": lambda _, answer: answer.send(200, b"", _TEXT),
                "/get_server_info": server_info,
                "/server_info": server_info,
                "/get_model_info": model_info,
                "/model_info": model_info,
                "/get_load": self._json(lambda: infos.loads(scheduler)),
                "/flush_cache": self._flush_cache,
                "/abort_request": self._abort_request,
                "/pd_role_switch": self._switch_role,
            }
        self._ours = ours | adapters.routes
        # /rerank and /score are vLLM's older names of the same routes.
        self._apis = dict(APIS) | {"/rerank": APIS["/v1/rerank"], "/score": APIS["/v1/score"]}
        if self._vllm:
            del self._apis["/generate"]

    def close(self) -> None:
        """The engine is gone: clients that leave it now leave nothing to be dropped."""
        self._closed = True

    def brings_work(self, request: Request) -> bool:
        """True if faults hit it."""
        return request.path in self._apis

    def answer(self, request: Request, answer: Answer) -> None:
        """Answer now, or take it up and answer later."""
        api = self._apis.get(request.path)
        try:
            if api is not None:
                self._take_up(api, request, answer)
            else:
                self._ours.get(request.path, _not_found)(request, answer)
        except RequestRefused as refused:
            native = api is not None and api.native
            dialect = self._settings.dialect
            body = error_body(
                dialect,
                refused.status,
                refused.message,
                param=refused.param,
                native=native,
                path=request.path,
            )
            answer.send(refused.status, body)

    def _take_up(self, api: Api, request: Request, answer: Answer) -> None:
        """Turn a request into jobs and hand them to the scheduler."""
        if request.method != "POST":
            raise RequestRefused("Method Not Allowed", status=405)
        body = decoded(request.body)
        model, extra = self._model(body, api)
        intake = api.read(body)
        rank = self._rank(api, request, body)
        outputs = self._outputs(intake)
        stream = api.streams and bool(body.get("stream"))
        choices = intake.samplings[0].n
        options = body.get("stream_options")
        id_ = self._id(api, request, body)
        facts = Facts(
            id=id_,
            model=model,
            created=int(time.time()),
            vllm=self._vllm,
            choices=choices,
            batch=intake.batch,
            include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
            cache_report=self._settings.cache_report,
        )
        ids = self._job_ids(id_, body, len(outputs))
        handover = self._handover
        plans = [None] * len(outputs) if handover is None else handover.plan(body, ids)
        generation = Generation(
            answer,
            stream=stream,
            abort=self._abort,
            error_body=lambda status, message: error_body(
                self._settings.dialect, status, message, native=api.native, path=request.path
            ),
            opens=self._vllm and request.path == "/v1/chat/completions",  # see router.handover.openings
        )
        jobs = [
            served_job(
                intake.prompts[index // choices],
                extra,
                output,
                generation,
                block_tokens=self._settings.block_tokens,
                index=index,
                id_=ids[index],
                stream=stream,
                rank=rank,
            )
            for index, output in enumerate(outputs)
        ]
        generation.begin(jobs, api.reply(facts, jobs, body))
        if stream and self._vllm:
            # vLLM answers with the head at once; SGLang waits for the first token.
            answer.start()
        self._counters.requests += 1
        for job, plan in zip(jobs, plans, strict=True):
            if handover is None or plan is None:
                self._scheduler.submit(job)
            else:
                handover.take(plan, job, generation)

    def _abort(self, job: Job) -> None:
        if self._closed:
            return
        if self._handover is None or not self._handover.abort(job):
            self._scheduler.abort(job)

    def _model(self, body: Mapping[str, Any], api: Api) -> tuple[str, Extra]:
        """The model's name as the client wrote it, and the scope in which it may share blocks."""
        settings = self._settings
        asked = body.get("lora_path") if api.native else body.get("model")
        name = settings.models[0] if asked is None else str(asked)
        adapter = ""
        if name not in settings.models:
            adapter = self._adapters.named(name, native=api.native)
            if not adapter:
                names = ", ".join((*settings.models, *settings.loras))
                message = f"The model `{asked}` does not exist. Valid aliases: {names}."
                raise RequestRefused(message, status=404, param="model")
        salt = self._salt(body, api)
        return name, self._adapters.use(adapter, salt) if adapter else Extra(salt)

    def _rank(self, api: Api, request: Request, body: Mapping[str, Any]) -> int:
        """Data-parallel rank that a request names; -1 for none, `RequestRefused` for one that is not there.

        vLLM 0.33 ``entrypoints/generate/base/serving.py``, ``v1/engine/input_processor.py``; SGLang 0.5.23
        ``entrypoints/openai/serving_base.py``, ``managers/tokenizer_manager.py``. Without a name SGLang's
        pairs follow the room (``managers/data_parallel_controller.py``).
        """
        ranks = self._settings.dp_ranks
        text = b"" if api.native else request.headers.get(b"x-data-parallel-rank", b"")
        named = body.get("routed_dp_rank", body.get("data_parallel_rank")) if not self._vllm else None
        if text:
            try:
                named = int(text)
            except ValueError as error:
                if self._vllm:
                    return -1
                raise RequestRefused("Invalid X-Data-Parallel-Rank header: must be an integer") from error
        if isinstance(named, int) and not isinstance(named, bool):
            if not 0 <= named < ranks:
                name = "data_parallel_rank " if self._vllm else "routed_dp_rank="
                raise RequestRefused(f"{name}{named} out of range [0, {ranks})", param="routed_dp_rank")
            return named
        room = body.get("bootstrap_room")
        return room % ranks if isinstance(room, int) and self._handover is not None else -1

    def _salt(self, body: Mapping[str, Any], api: Api) -> str | None:
        """Salt that keeps the request's cache apart.

        SGLang joins two fields (``entrypoints/openai/serving_base.py``), and its Messages API has neither
        (``entrypoints/anthropic/protocol.py``).
        """
        names: tuple[str, ...] = ("cache_salt",)
        if not self._vllm:
            names = () if api.prefix == "msg_" else ("cache_salt", "extra_key")
        return "".join(str(body[name]) for name in names if body.get(name)) or None

    def _outputs(self, intake: Intake) -> list[Output]:
        """Decide all answers; `RequestRefused` if a prompt with its answer is longer than the context."""
        settings = self._settings
        longest = settings.context_tokens_max
        outputs: list[Output] = []
        for prompt, sampling in zip(intake.prompts, intake.samplings, strict=True):
            length = count(prompt)
            wanted = 1 if sampling.max_tokens is None else sampling.max_tokens
            if length + wanted > longest:
                raise RequestRefused(
                    f"This model's maximum context length is {longest} tokens. However, you requested "
                    f"{wanted} output tokens and your prompt contains {length} input tokens, for a total "
                    f"of {length + wanted} tokens. Please reduce the length of the input prompt or the "
                    "number of requested output tokens.",
                    param="input_tokens",
                )
            outputs += (
                choose_output(prompt, choice, sampling, settings.output_tokens, longest - length)
                for choice in range(sampling.n)
            )
        return outputs

    def _id(self, api: Api, request: Request, body: Mapping[str, Any]) -> str:
        """From X-Request-Id, on which vLLM builds its own; SGLang takes ``rid`` from the body."""
        if self._vllm:
            given = request.headers.get(b"x-request-id")
            return api.prefix + (given.decode("latin-1") if given else uuid4().hex)
        rid = body.get("rid")
        if isinstance(rid, str):
            return rid
        return uuid4().hex if api.prefix not in ("resp_", "msg_") else api.prefix + uuid4().hex

    def _job_ids(self, id_: str, body: Mapping[str, Any], jobs: int) -> Sequence[str]:
        rids = body.get("rid")
        if isinstance(rids, list) and len(rids) == jobs and all(isinstance(rid, str) for rid in rids):
            return rids
        return [id_] if jobs == 1 else [f"{id_}_{index}" for index in range(jobs)]

    def _json(self, make: Callable[[], Any]) -> Callable[[Request, Answer], None]:
        return lambda _, answer: answer.send(200, orjson.dumps(make()))

    def _metrics(self, request: Request, answer: Answer) -> None:
        handed = None if self._handover is None else self._handover.counters
        body = self._counters.exposition(self._settings, self._scheduler, handed)
        answer.send(200, body, _EXPOSITION)

    def _tokenize(self, request: Request, answer: Answer) -> None:
        intake = tokenize_intake(decoded(request.body))
        ids = [unpack_ids(prompt) for prompt in intake.prompts]
        counts = [len(one) for one in ids]
        answer.send(
            200,
            orjson.dumps(
                {
                    "tokens": ids if intake.batch else ids[0],
                    "count": counts if intake.batch else counts[0],
                    "max_model_len": self._settings.max_model_len,
                }
            ),
        )

    def _count_tokens(self, request: Request, answer: Answer) -> None:
        (prompt,) = count_tokens_intake(decoded(request.body)).prompts
        answer.send(200, orjson.dumps({"input_tokens": count(prompt)}))

    def _detokenize(self, request: Request, answer: Answer) -> None:
        try:
            text = unpack_text(pack_ids(decoded(request.body).get("tokens", ())))
        except (TypeError, OverflowError) as error:
            raise RequestRefused("tokens must be a list of token ids", param="tokens") from error
        answer.send(200, orjson.dumps({"prompt" if self._vllm else "text": text}))

    def _flush_cache(self, request: Request, answer: Answer) -> None:
        # SGLang flushes only when it is idle, and says so with 400 otherwise.
        idle = self._scheduler.running == 0 and self._scheduler.waiting == 0
        if idle:
            self._scheduler.clear()
        answer.send(200 if idle else 400, b"Cache flushed.\n" if idle else b"Requests are running.\n", _TEXT)

    def _reset_prefix_cache(self, request: Request, answer: Answer) -> None:
        self._scheduler.clear()
        answer.send(200, b'{"success":true}')

    def _abort_request(self, request: Request, answer: Answer) -> None:
        body = decoded(request.body)
        rid = body.get("rid")
        begins = "" if body.get("abort_all") else rid
        if isinstance(begins, str) and (begins or body.get("abort_all")):
            self._scheduler.abort_id(begins)
            if self._handover is not None:
                self._handover.abort_id(begins)
        answer.send(200, b"", _TEXT)

    def _switch_role(self, request: Request, answer: Answer) -> None:
        if request.method != "POST":
            raise RequestRefused("Method Not Allowed", status=405)
        self._part.switch(str(decoded(request.body).get("new_role") or "").lower(), answer)


def _not_found(request: Request, answer: Answer) -> None:
    raise RequestRefused("Not Found", status=404)
