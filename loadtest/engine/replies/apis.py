"""The APIs that bring work: how each reads a request and writes its answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.engine import intake
from loadtest.engine.intake import Intake
from loadtest.engine.replies.chat import ChatReply
from loadtest.engine.replies.completions import CompletionReply
from loadtest.engine.replies.generate import GenerateReply
from loadtest.engine.replies.messages import MessagesReply
from loadtest.engine.replies.reply import Facts, Reply
from loadtest.engine.replies.responses import ResponsesReply
from loadtest.engine.replies.vectors import EmbeddingReply, RerankReply, ScoreReply
from loadtest.engine.served import ServedJob

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    Attributes:
        prefix: Prefix of the ids of its answers.
        read: Makes an `Intake`; raises `RequestRefused`.
        streams: Answers may be streams.
        native: SGLang's own API, not OpenAI's or Anthropic's.
    """

    prefix: str
    read: Callable[[Body], Intake]
    reply: Callable[[Facts, Sequence[ServedJob], Body], Reply]
    streams: bool = True
    native: bool = False


APIS: Mapping[str, Api] = {
    "/v1/chat/completions": Api("chatcmpl-", intake.chat_intake, lambda f, jobs, _: ChatReply(f, jobs)),
    "/v1/completions": Api("cmpl-", intake.completion_intake, lambda f, jobs, _: CompletionReply(f, jobs)),
    "/v1/responses": Api("resp_", intake.responses_intake, ResponsesReply),
    "/v1/messages": Api("msg_", intake.messages_intake, lambda f, jobs, _: MessagesReply(f, jobs)),
    "/generate": Api("", intake.generate_intake, lambda f, jobs, _: GenerateReply(f, jobs), native=True),
    "/v1/embeddings": Api("embd-", intake.embedding_intake, EmbeddingReply, streams=False),
    "/v1/rerank": Api("rerank-", intake.rerank_intake, RerankReply, streams=False),
    "/v1/score": Api("score-", intake.score_intake, lambda f, jobs, _: ScoreReply(f, jobs), streams=False),
}
