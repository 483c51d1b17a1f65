"""The endpoints that are forwarded to workers, by path.

Bodies differ by endpoint: where the prompt is, which field bounds the output, where the answer reports usage.
``PASSED_THROUGH`` endpoints have no prompt that the gateway matches; of their bodies only ``model`` is read.
Paths are those of vLLM 0.32 (``entrypoints/``) and SGLang 0.5 (``srt/entrypoints/http_server.py``). Paths
that administer an engine are in no list, so no client reaches one (`router.relaying.routes`).
"""

import enum


class Endpoint(enum.StrEnum):
    """A forwarded endpoint; its value is its path.

    `ENDPOINTS` have a JSON body and are posted; `router.relaying` serves the others.
    """

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    GENERATE = "/generate"
    INVOCATIONS = "/invocations"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    TOKENIZE = "/tokenize"
    TOKENIZE_V1 = "/v1/tokenize"
    DETOKENIZE = "/detokenize"
    DETOKENIZE_V1 = "/v1/detokenize"
    CHAT_RENDER = "/v1/chat/completions/render"
    CHAT_DERENDER = "/v1/chat/completions/derender"
    COMPLETIONS_RENDER = "/v1/completions/render"
    COMPLETIONS_DERENDER = "/v1/completions/derender"
    MESSAGES_RENDER = "/v1/messages/render"
    RESPONSES_RENDER = "/v1/responses/render"
    PARSE_FUNCTION_CALL = "/parse_function_call"
    SEPARATE_REASONING = "/separate_reasoning"
    RERANK = "/v1/rerank"
    RERANK_SHORT = "/rerank"
    RERANK_V2 = "/v2/rerank"
    SCORE = "/v1/score"
    SCORE_SHORT = "/score"
    GENERATIVE_SCORING = "/generative_scoring"
    CLASSIFY = "/classify"
    CLASSIFY_V1 = "/v1/classify"
    POOLING = "/pooling"
    EMBED_V2 = "/v2/embed"
    CHAT_BATCH = "/v1/chat/completions/batch"
    COHERE_CHAT = "/cohere/v2/chat"
    TOKENS = "/inference/v1/generate"
    VERTEX = "/vertex_generate"
    SPEECH = "/v1/audio/speech"
    IMAGES = "/v1/images/generations"
    TRANSCRIPTIONS = "/v1/audio/transcriptions"
    TRANSLATIONS = "/v1/audio/translations"
    IMAGE_EDITS = "/v1/images/edits"
    IMAGE_VARIATIONS = "/v1/images/variations"
    RESPONSE = "/v1/responses/{id}"
    RESPONSE_CANCEL = "/v1/responses/{id}/cancel"
    REALTIME = "/v1/realtime"
    VERSION = "/version"
    MORE = "upstream.pass_through"
    """A path that the operator's setting names."""

    @property
    def needs_model(self) -> bool:
        """True if a body without ``model`` is an error: the OpenAI and Anthropic APIs demand it."""
        return self in _MODEL_NEEDED


_MODEL_NEEDED = frozenset(
    {Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS, Endpoint.RESPONSES, Endpoint.MESSAGES}
)

UPLOADS = frozenset(
    {Endpoint.TRANSCRIPTIONS, Endpoint.TRANSLATIONS, Endpoint.IMAGE_EDITS, Endpoint.IMAGE_VARIATIONS}
)
"""Endpoints whose bodies are forms with files; they are streamed to a worker (`router.relaying.upload`)."""

RELAYED = UPLOADS | {
    Endpoint.RESPONSE,
    Endpoint.RESPONSE_CANCEL,
    Endpoint.REALTIME,
    Endpoint.VERSION,
    Endpoint.MORE,
}
"""Endpoints without a JSON body to read."""


class EncoderPath(enum.StrEnum):
    """A path of an encoder, which language workers call (`router.encoding`)."""

    ENCODE = "/encode"
    SEND = "/send"
    RECEIVE_URL = "/scheduler_receive_url"
    RECEIVE_META_DATA = "/scheduler_receive_meta_data"


ENCODER_PATHS = frozenset(path.value.encode() for path in EncoderPath)

ENDPOINTS: dict[bytes, Endpoint] = {
    endpoint.value.encode(): endpoint for endpoint in Endpoint if endpoint not in RELAYED
}
"""Endpoints to which JSON is posted, by path."""

PASSED_THROUGH = (
    frozenset(ENDPOINTS.values()) - _MODEL_NEEDED - {Endpoint.GENERATE, Endpoint.INVOCATIONS}
) | RELAYED

WITHOUT_CACHE = frozenset(
    {
        *(Endpoint.TOKENIZE, Endpoint.TOKENIZE_V1, Endpoint.DETOKENIZE, Endpoint.DETOKENIZE_V1),
        *(Endpoint.CHAT_RENDER, Endpoint.CHAT_DERENDER, Endpoint.MESSAGES_RENDER, Endpoint.RESPONSES_RENDER),
        *(Endpoint.COMPLETIONS_RENDER, Endpoint.COMPLETIONS_DERENDER, Endpoint.COUNT_TOKENS),
        *(Endpoint.PARSE_FUNCTION_CALL, Endpoint.SEPARATE_REASONING, Endpoint.SPEECH, Endpoint.IMAGES),
        *(Endpoint.RESPONSE, Endpoint.RESPONSE_CANCEL, Endpoint.VERSION),
    }
)
"""Endpoints at which an engine fills no prefix cache."""
