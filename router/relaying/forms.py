r"""Reads a form (RFC 7578) while it passes: finds ``model``, and refuses fields of the gateway's.

    CRLF --boundary CRLF  headers CRLF CRLF  value  CRLF --boundary ...  CRLF --boundary--
    `── DELIMITER         `── HEADERS        `── VALUE, of ``model``; other values are skipped

Each byte is looked at once, in a window of a few kilobytes, to the last one: a form may have a second end.
Names are read strictly. Engines understand more ways to write one (``name*=``, escapes, folded lines), so
such a part is refused: it could be another field to the engine than to us.

Refused are the fields that `router.gateway.bodies` refuses in JSON or `client_fields` takes out, and
``vllm_xargs``, which may hold them. Earlier parts may be at the worker already, but without its end an
engine does nothing with it.
"""

import re
from enum import Enum, auto

from radix import NAME_CHARS_MAX
from router.errors import ClientError
from router.gateway.bodies import HANDOVER_FIELDS
from router.gateway.client_fields import ID_FIELDS
from router.gateway.salting import SALT_FIELDS

HEADERS_BYTES_MAX = 8 * 1024
"""Headers of one part."""

PARTS_MAX = 100

BOUNDARY_CHARS_MAX = 70
"""RFC 2046, section 5.1.1."""

FORBIDDEN = frozenset((*ID_FIELDS, *SALT_FIELDS))
"""Fields by which a client would set names or salts that only the gateway sets."""

OF_HANDOVER = HANDOVER_FIELDS | {"vllm_xargs"}
"""Fields that `fleet.allow_client_kv_transfer` lets clients set."""

_PARAMETER = rb'\s*;\s*([A-Za-z0-9_.-]{1,32})=(?:"([^"\\;\r\n]{1,128})"|([^"\\;,\s*]{1,128}))'
_FORM = re.compile(rb"multipart/form-data((?:%b){1,8})\s*;?" % _PARAMETER, re.IGNORECASE)
_PARAMETERS = re.compile(_PARAMETER)
_DISPOSITION = re.compile(rb"content-disposition\s*:(.*)", re.IGNORECASE | re.DOTALL)
_ANY_NAME = re.compile(rb"(?:^|[;\s])name\s*(?:\*[^=]*)?=", re.IGNORECASE)
_NAME = re.compile(
    rb';\s*name=(?:"([A-Za-z0-9_.\[\]-]{1,128})"|([A-Za-z0-9_.-]{1,128}))\s*(?:;|$)', re.IGNORECASE
)


class _Next(Enum):
    DELIMITER = auto()
    HEADERS = auto()
    VALUE = auto()


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary of a form; empty if it is none, or one that an engine might read otherwise.

    Two boundaries, one in the quotes of another parameter, or ``boundary*=`` would let a client show the
    gateway one form and the engine another.
    """
    found = _FORM.fullmatch(content_type.strip())
    named = [] if found is None else _PARAMETERS.findall(found[1])
    boundaries: list[bytes] = [
        quoted or plain for name, quoted, plain in named if name.lower() == b"boundary"
    ]
    return boundaries[0] if len(boundaries) == 1 and len(boundaries[0]) <= BOUNDARY_CHARS_MAX else b""


class FormReader:
    """The reading of one form.

    Attributes:
        model: Its value; None before it is found, or if there is none.
        model_at: Begin and end of the value in the form, in bytes.
        ended: True once its end came.
    """

    def __init__(self, boundary: bytes, *, handover_allowed: bool = False) -> None:
        self.model: str | None = None
        self.model_at = 0, 0
        self.ended = False
        self._passed = -2
        """Bytes of the form before the window; the window begins with two that are not in the form."""
        self._forbidden = FORBIDDEN if handover_allowed else FORBIDDEN | OF_HANDOVER
        self._delimiter = b"\r\n--" + boundary
        self._window = bytearray(b"\r\n")  # the first delimiter begins the form
        self._next = _Next.DELIMITER
        self._parts = 0

    def feed(self, data: bytes) -> None:
        """Read a piece.

        Raises `ClientError` for a form that is malformed, has a field of the gateway's, or a name of a model
        that is no name.
        """
        self._window += data
        while self._step(self._window):
            pass

    def _step(self, window: bytearray) -> bool:
        """Read the next part of the grammar; return False if it has not come yet."""
        match self._next:
            case _Next.DELIMITER:
                return self._read_delimiter(window)
            case _Next.HEADERS:
                return self._read_headers(window)
            case _Next.VALUE:
                return self._read_model(window)

    def _read_delimiter(self, window: bytearray) -> bool:
        size = len(self._delimiter)
        begin = window.find(self._delimiter)
        if begin < 0:
            self._drop(max(0, len(window) - size + 1))
            return False
        if len(window) < begin + size + 2:
            self._drop(begin)
            return False
        after = bytes(window[begin + size : begin + size + 2])
        if after == b"--":
            self.ended = True
        elif after == b"\r\n":
            self._parts += 1
            if self._parts > PARTS_MAX:
                raise _malformed("it has too many parts")
            self._next = _Next.HEADERS
        elif after[:1] in b" \t":
            raise _malformed("blanks behind its boundary")
        self._drop(begin + size)
        return True

    def _read_headers(self, window: bytearray) -> bool:
        # The window begins with the CR LF of the delimiter's line.
        end = window.find(b"\r\n\r\n")
        if (len(window) if end < 0 else end) > HEADERS_BYTES_MAX:
            raise _malformed("the headers of a part are too long")
        if end < 0:
            return False
        name, is_file = _name_of(bytes(window[2:end]))
        if name in self._forbidden:
            raise ClientError(
                f"{name} is for this gateway to say to its engines; leave it out.",
                code="forbidden_field",
                param=name,
            )
        if name == "model" and self.model is not None:
            raise _malformed("it has model twice")  # engines take the last one
        wanted = name == "model" and not is_file
        self._next = _Next.VALUE if wanted else _Next.DELIMITER
        self._drop(end + 4)
        return True

    def _read_model(self, window: bytearray) -> bool:
        end = window.find(self._delimiter)
        if (len(window) if end < 0 else end) > 4 * NAME_CHARS_MAX + len(self._delimiter):
            raise ClientError("model is too long.", code="invalid_value", param="model")
        if end < 0:
            return False
        try:
            model = window[:end].decode()
        except UnicodeDecodeError:
            raise ClientError("model is not UTF-8.", code="invalid_value", param="model") from None
        if len(model) > NAME_CHARS_MAX:
            raise ClientError("model is too long.", code="invalid_value", param="model")
        self.model, self.model_at = model, (self._passed, self._passed + end)
        self._next = _Next.DELIMITER
        self._drop(end)
        return True

    def _drop(self, size: int) -> None:
        """Move the window on."""
        del self._window[:size]
        self._passed += size


def _name_of(headers: bytes) -> tuple[str, bool]:
    """Return the name of a part, and whether it is a file; an empty name if it has no disposition."""
    found = []
    for line in headers.split(b"\r\n"):
        if line[:1] in (b" ", b"\t") and line:
            raise _malformed("a folded line")
        disposition = _DISPOSITION.fullmatch(line)
        if disposition is not None:
            found.append(disposition[1])
    if not found:
        return "", False
    names = _ANY_NAME.findall(found[0])
    name = _NAME.search(found[0])
    if len(found) > 1 or len(names) > 1 or name is None or b"\\" in found[0].partition(b"filename")[0]:
        raise _malformed("the name of a part is not written plainly")
    plain: bytes = name[1] or name[2]
    return plain.decode(), b"filename" in found[0].lower()


def _malformed(why: str) -> ClientError:
    return ClientError(f"The form is malformed: {why}.", code="invalid_form")
