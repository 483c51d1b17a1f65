"""The endpoints that are forwarded to workers, by path.

Bodies differ by endpoint: where the prompt is, which field bounds the output, where the answer reports usage.
``PASSED_THROUGH`` endpoints have no prompt that a worker would cache; of their bodies only ``model`` is read.
"""

import enum


class Endpoint(enum.StrEnum):
    """A forwarded endpoint; its value is its path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    EMBEDDINGS = "/v1/embeddings"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    GENERATE = "/generate"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    RERANK = "/v1/rerank"
    RERANK_SHORT = "/rerank"
    SCORE = "/v1/score"
    SCORE_SHORT = "/score"

    @property
    def needs_model(self) -> bool:
        """True if a body without ``model`` is an error: the OpenAI and Anthropic APIs demand it."""
        return self in _MODEL_NEEDED


_MODEL_NEEDED = frozenset(
    {Endpoint.CHAT, Endpoint.COMPLETIONS, Endpoint.EMBEDDINGS, Endpoint.RESPONSES, Endpoint.MESSAGES}
)


class EncoderPath(enum.StrEnum):
    """A path of an encoder, which language workers call (`router.encoding`)."""

    ENCODE = "/encode"
    SEND = "/send"
    RECEIVE_URL = "/scheduler_receive_url"
    RECEIVE_META_DATA = "/scheduler_receive_meta_data"


ENCODER_PATHS = frozenset(path.value.encode() for path in EncoderPath)

PASSED_THROUGH = frozenset(Endpoint) - _MODEL_NEEDED - {Endpoint.GENERATE}
