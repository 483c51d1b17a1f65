"""The model in a query (``?model=``), read as strictly as one in a form, and replaced there.

Starlette, and so vLLM and SGLang, takes the last of several values; others take the first. So several are
refused, and a query that is too long to be read whole, too.
"""

from urllib.parse import quote, unquote_to_bytes

import msgspec

from radix import NAME_CHARS_MAX
from router.errors import ClientError
from router.proxy import ClientRequest

QUERY_BYTES_MAX = 8 * 1024
FIELDS_MAX = 256


class ModelQuery:
    """A query of a request, and the model that it names.

    Attributes:
        model: The name; None if there is none.
    """

    def __init__(self, query: bytes) -> None:
        """Read a query; raise `ClientError` for a model that cannot be told for sure, or is no name."""
        self.model: str | None = None
        self._fields = query.split(b"&", FIELDS_MAX) if query else []
        self._at = -1
        if len(query) > QUERY_BYTES_MAX or len(self._fields) > FIELDS_MAX:
            raise ClientError("The query is too long to have a model.", code="invalid_value")
        for index, field in enumerate(self._fields):
            name, _, value = field.partition(b"=")
            if _plain(name) != b"model":
                continue
            if self._at >= 0:
                raise ClientError("The query has model twice.", code="invalid_value", param="model")
            self._at = index
            try:
                model = _plain(value).decode()
            except UnicodeDecodeError:
                raise ClientError("model is not UTF-8.", code="invalid_value", param="model") from None
            if len(model) > NAME_CHARS_MAX:
                raise ClientError("model is too long.", code="invalid_value", param="model")
            self.model = model or None

    def renamed(self, model: str | None) -> bytes:
        """Return the query with another model; all other bytes stay."""
        fields = self._fields
        if model and self.model and model != self.model:
            fields = [
                *fields[: self._at],
                b"model=" + quote(model, safe="").encode(),
                *fields[self._at + 1 :],
            ]
        return b"&".join(fields)

    def renamed_in(self, request: ClientRequest, model: str | None) -> ClientRequest:
        """Return the request with another model in its query."""
        head = msgspec.structs.replace(request.head, query=self.renamed(model))
        return msgspec.structs.replace(request, head=head)


def _plain(written: bytes) -> bytes:
    return unquote_to_bytes(written.replace(b"+", b" "))
