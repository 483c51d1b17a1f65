"""Limits of one client connection, so that no client can hold memory or a place for ever."""

from dataclasses import dataclass

from policies import setting

_MIB = 1024 * 1024


@dataclass(frozen=True)
class ClientLimits:
    """Limits per connection and request; what exceeds them is refused or closed."""

    body_bytes_max: int = setting(
        512 * _MIB,
        "Largest request body, in bytes; larger ones get 413. The default is the peers', large enough for "
        "batches of embeddings and images as data. A body is held in memory until it is sent.",
        flag="max-payload-size",
        ge=1024,
        live=True,
    )
    held_bytes_max: int = setting(
        1024 * _MIB,
        "Bytes of request bodies that one process holds at a time; a body beyond them gets 429 and "
        "Retry-After. A body counts from its first byte until its answer begins: while it comes in, while it "
        "waits for a worker, and while it may have to be sent again. Bodies below 256 KB may go an eighth "
        "beyond the bound, so that large ones do not keep them out. The default fits a pod of 4 GiB: set a "
        "quarter of the memory that each process has. It is at least "
        "server.body_bytes_max. 0 turns the limit off.",
        ge=0,
        live=True,
    )
    header_count_max: int = setting(
        100,
        "Most header lines of a request; more get 431. The default is what most HTTP servers allow.",
        ge=8,
        live=True,
    )
    header_bytes_max: int = setting(
        64 * 1024,
        "Largest head of a request, in bytes; larger ones get 431. The default has room for large bearer "
        "tokens.",
        ge=1024,
        le=16 * _MIB,
        live=True,
    )
    read_timeout_s: float = setting(
        60.0,
        "Longest time a client may take to send the head or the body of a request, in seconds; then it "
        "gets 408. It frees us from clients that send a byte at a time.",
        gt=0,
        live=True,
    )
    stall_s_max: float = 120.0
    """Longest time a client may leave a full send buffer untouched while it is answered."""
