"""Calls of SGLang's language workers to encoders, as far as a choice needs them.

With ``--language-only --encoder-urls URL...`` a language worker (prefill, or plain) sends the media of a
request to encoders itself (``disaggregation/encoder/receiver.py``, ``http_server.py``), and the gateway
takes an encoder's place. The media come divided into *parts*, one for each URL of the worker, each with an
id:

    /encode                       encode a part: {req_id, mm_items, part_idx, num_parts, modality, ...}
    /scheduler_receive_url        where its embeddings go (zmq_to_scheduler), from each rank, at any time
    /scheduler_receive_meta_data  how large they are (mooncake), held until that is known
    /send                         push them (mooncake), after /encode has answered

``mm_items`` are strings, or objects with ``url`` and perhaps ``content_hash``. Read in the sources of autumn
2026, not tried on a real engine.
"""

import msgspec
import xxhash

from router.errors import ClientError
from router.gateway.conversation import content_digest

REQ_ID_CHARS_MAX = 512


class _Item(msgspec.Struct, gc=False):
    url: str = ""
    content_hash: str | None = None


class EncoderCall(msgspec.Struct, gc=False):
    """One call; ``req_id`` is the part's, and ``mm_items`` are its media if it is to be encoded."""

    req_id: str
    mm_items: list[str | _Item] = []

    def part(self, tenant: str) -> str:
        """Return a short name of the part for the shared log, different for each tenant."""
        name = f"{tenant}\0{self.req_id}" if tenant else self.req_id
        return xxhash.xxh3_64_hexdigest(name.encode("utf-8", "surrogatepass"))

    @property
    def key(self) -> int:
        """64-bit hash of the content of its first medium, which stays the same while a conversation goes on.

        All media of a part go to one encoder, and each turn of a conversation brings those of the turns
        before.
        """
        if not self.mm_items:
            return 0
        first = self.mm_items[0]
        text = first if isinstance(first, str) else first.content_hash or first.url
        return int.from_bytes(content_digest(text)[:8], "little")


_decoder = msgspec.json.Decoder(EncoderCall)


def decoded(body: bytes) -> EncoderCall:
    """Decode the body of a call; raise ClientError if it is not valid."""
    try:
        call = _decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise ClientError(f"This is no call of an encoder: {error}", code="invalid_encoder_call") from error
    if not 0 < len(call.req_id) <= REQ_ID_CHARS_MAX:
        raise ClientError(
            f"req_id must have 1 to {REQ_ID_CHARS_MAX} characters.",
            code="invalid_encoder_call",
            param="req_id",
        )
    return call
