"""What a client may ask of one connection, so that no client can hold memory or a place for ever."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits per connection and request; what exceeds them is refused or closed.

    Attributes:
        body_bytes_max: Longest body of a proxied request.
        headers_max: Most headers of a request.
        head_bytes_max: Longest head: target, names and values.
        receive_s_max: Longest time from the first byte of a request (or from connecting) to its last.
        stall_s_max: Longest time a client may leave a full send buffer untouched while it is answered.
    """

    body_bytes_max: int = 64 * 1024 * 1024
    headers_max: int = 100
    head_bytes_max: int = 64 * 1024
    receive_s_max: float = 60.0
    stall_s_max: float = 120.0
