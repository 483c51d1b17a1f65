"""Types of setting values: each checks a value, and its error says how to mend it.

A message never quotes a value that may hold a password.
"""

import ipaddress
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

REDIS_SCHEMES = (
    *("redis://", "rediss://", "unix://"),
    *("redis+sentinel://", "rediss+sentinel://", "redis+cluster://", "rediss+cluster://"),
)


def http_url(url: str) -> str:
    """Check and normalise one base URL of a worker; raise ValueError if it is no such URL."""
    url = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL ({error}); write http://HOST:PORT") from error
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{url!r} must start with http:// or https://")
    if not host or any(character.isspace() or character == "\\" for character in url):
        raise ValueError(f"{url!r} names no valid host; write http://HOST:PORT")
    if parts.username or parts.password:
        raise ValueError("a worker URL must not hold a user name or password; use worker_api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} must end with the host, port or path; drop what follows '?' or '#'")
    return url


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an address or host name to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a value that is given twice: it is a slip, and hides that another one is missing."""
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is given more than once")
    return values


def _redis_url(url: str) -> str:
    """Check the scheme of a Redis URL; redis-py checks the rest."""
    if url and not url.startswith(REDIS_SCHEMES):
        raise ValueError(
            "must start with redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://, "
            "for example redis://redis.example:6379/0"
        )
    return url


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _header_name(name: str) -> str:
    """Check an HTTP header name (RFC 9110, section 5.6.2) and lower it."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not an HTTP header name")
    return name.lower()


def _level(value: object) -> object:
    """Accept ``WARN`` and the like: the peers' command lines hold them."""
    if not isinstance(value, str):
        return value
    lowered = value.lower()
    return "warning" if lowered == "warn" else lowered


_TOKENS = re.compile(r"([1-9][0-9]{0,11})([KM]?)")


def token_count(text: str) -> int:
    """Parse a number of tokens with an optional K (1024) or M (1024 K); raise ValueError if it is none."""
    found = _TOKENS.fullmatch(text.strip().upper())
    if found is None:
        raise ValueError(f"{text!r} is not a number of tokens; write 65536 or 64K")
    return int(found[1]) * {"": 1, "K": 1024, "M": 1024 * 1024}[found[2]]


def _tokens(value: object) -> object:
    """Take a number from a file as it is written there, and check it."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str):
        token_count(text)
    return text


def _secret(value: object) -> object:
    """Drop the line break that secret files end with; an empty secret is none."""
    if not isinstance(value, str):
        return value
    value = value.strip()
    if not (value.isascii() and value.isprintable() and " " not in value):
        raise ValueError("a key is printable ASCII without spaces")
    return value or None


HttpUrl = Annotated[str, AfterValidator(http_url)]
RedisUrl = Annotated[str, AfterValidator(_redis_url)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
TokenCount = Annotated[str, BeforeValidator(_tokens)]
"""Tokens as people write them; `token_count` reads it."""
Secret = Annotated[SecretStr | None, BeforeValidator(_secret)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error", "critical"],
    BeforeValidator(_level),
]


def _networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    for network in networks:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ValueError(f"{network!r} is not a network such as 10.0.0.0/8 ({error})") from error
    return networks


Networks = Annotated[tuple[str, ...], AfterValidator(_networks)]
"""Networks, such as 10.0.0.0/8."""
