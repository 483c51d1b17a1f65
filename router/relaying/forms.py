r"""Finds the field ``model`` of a form (RFC 7578) while the form comes in.

    --boundary CRLF  headers CRLF CRLF  value CRLF  --boundary ...  --boundary--
    `── DELIMITER    `── HEADERS        `── VALUE, of ``model`` only; all other values are skipped

What was read once is not read again, whatever the pieces.
"""

import re
from enum import Enum, auto

from radix import NAME_CHARS_MAX
from router.errors import ClientError

HEADERS_BYTES_MAX = 8 * 1024
"""Headers of one part."""

PARTS_MAX = 100

BOUNDARY_CHARS_MAX = 70
"""RFC 2046, section 5.1.1."""

_BOUNDARY = re.compile(
    rb'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"\r\n]+)"|([^";,\s]+))', re.IGNORECASE
)
_NAME = re.compile(
    rb'^content-disposition:\s*form-data\s*;(?:[^\r\n]*;)?\s*name="?model"?\s*(?:;|$)', re.I | re.M
)
_FILE = re.compile(rb"^content-disposition:[^\r\n]*;\s*filename\*?=", re.IGNORECASE | re.MULTILINE)


class _Next(Enum):
    DELIMITER = auto()
    HEADERS = auto()
    VALUE = auto()
    NOTHING = auto()


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary of a form; empty if it is none."""
    found = _BOUNDARY.match(content_type.strip())
    boundary: bytes = b"" if found is None else found[1] or found[2]
    return boundary if len(boundary) <= BOUNDARY_CHARS_MAX else b""


class ModelField:
    """The search in one form.

    Attributes:
        model: Its value; None before it is found, or if there is none.
        over: True once there is nothing more to find.
    """

    def __init__(self, boundary: bytes) -> None:
        self.model: str | None = None
        self.over = False
        self._delimiter = b"--" + boundary
        self._next = _Next.DELIMITER
        self._at = 0
        self._parts = 0

    def look(self, body: bytes | bytearray) -> bool:
        """Look at all that came so far; return True if the search is over.

        Raises `ClientError` for a form that is malformed, or whose name of a model is no name.
        """
        while not self.over and self._step(body):
            pass
        return self.over

    def _step(self, body: bytes | bytearray) -> bool:
        """Go to the next part of the grammar; return False if it has not come yet."""
        if self._next is _Next.DELIMITER:
            return self._find_delimiter(body)
        if self._next is _Next.HEADERS:
            end = body.find(b"\r\n\r\n", self._at)
            if end < 0 or end - self._at > HEADERS_BYTES_MAX:
                if end >= 0 or len(body) - self._at > HEADERS_BYTES_MAX:
                    raise _malformed("the headers of a part are too long")
                return False
            headers = bytes(body[self._at : end])
            is_model = _NAME.search(headers) is not None and _FILE.search(headers) is None
            self._next = _Next.VALUE if is_model else _Next.DELIMITER
            self._at = end + 4
            return True
        end = body.find(b"\r\n" + self._delimiter, self._at)
        if (len(body) if end < 0 else end) - self._at > 4 * NAME_CHARS_MAX:
            raise ClientError("model is too long.", code="invalid_value", param="model")
        if end < 0:
            return False
        try:
            self.model = body[self._at : end].decode()
        except UnicodeDecodeError:
            raise ClientError("model is not UTF-8.", code="invalid_value", param="model") from None
        if len(self.model) > NAME_CHARS_MAX:
            raise ClientError("model is too long.", code="invalid_value", param="model")
        self.over = True
        return True

    def _find_delimiter(self, body: bytes | bytearray) -> bool:
        begin = body.find(self._delimiter, self._at)
        if begin < 0:
            self._at = max(self._at, len(body) - len(self._delimiter))
            return False
        end = begin + len(self._delimiter)
        if len(body) < end + 2:
            self._at = begin
            return False
        if body[end : end + 2] == b"--":
            self.over = True
            return True
        self._at = end
        if body[end : end + 2] == b"\r\n":
            self._parts += 1
            if self._parts > PARTS_MAX:
                raise _malformed("it has too many parts")
            # So that headers which are empty end, too.
            self._next = _Next.HEADERS
        return True


def _malformed(why: str) -> ClientError:
    return ClientError(f"The form is malformed: {why}.", code="invalid_form")
