"""Hold of one request on the KV cache.

    open --admit--> admitted --close | abort--> ended
      +--------------- abort ------------------>

A lease locks the path of the tree down to its node, and the window KV of its last W tokens, and reserves room
in both pools for what is still to be computed.
"""

from typing import Literal

from loadtest.engine.kv.tree import Node

State = Literal["open", "admitted", "ended"]


class Lease:
    """One request's claim; made by `KvCache.open`, changed by the cache alone.

    Attributes:
        blocks: Packed hashes of the full blocks of the prompt; of prompt and answer once closed.
        session: Name of its session, by which a shared pool places it; empty if unknown.
        output_tokens: Longest answer.
        ready_s: Earliest time of admission; no later than the opening if nothing is awaited.
        device_tokens: Prompt tokens reused from the device; known from admission on, as the following.
        host_tokens: Tokens beyond them, loaded from the host.
        pool_tokens: The part of ``host_tokens`` that came from the shared pool.
        load_bytes: Bytes to copy from the host to the device, which overlaps with the prefill.
        node: End of the locked path, while admitted.
        end: Blocks of its sequence in the tree.
        reserved: Room in the full pool that it has not filled, tokens.
        kept_ends: Boundaries that stay reusable when it moves on, in blocks, beside those kept by position.
        branch: SGLang: where the prompt left what the engine holds, if it could not go on from there, blocks;
            0 once it is in the tree.
        computed_tokens: Tokens that are reused or computed, as far as the cache was told.
        window_from: SGLang: first block whose window KV the request has not freed.
        live: Runs of window KV that it has put into the tree and would release, blocks.
        window_locked: Blocks behind `node` whose window KV it locks.
        swa_reserved: The same as `reserved` in the window pool.
        swa_committed: Most window KV that it may ever lock and reserve together, tokens.
    """

    __slots__ = (
        "blocks",
        "branch",
        "computed_tokens",
        "device_tokens",
        "end",
        "host_tokens",
        "kept_ends",
        "live",
        "load_bytes",
        "node",
        "output_tokens",
        "pool_tokens",
        "prompt_tokens",
        "ready_s",
        "reserved",
        "session",
        "state",
        "swa_committed",
        "swa_reserved",
        "window_from",
        "window_locked",
    )

    def __init__(
        self, blocks: bytes, prompt_tokens: int, output_tokens: int, ready_s: float, session: bytes = b""
    ) -> None:
        """Open a lease; see `KvCache.open`."""
        self.blocks = blocks
        self.session = session
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.ready_s = ready_s
        self.device_tokens = 0
        self.host_tokens = 0
        self.pool_tokens = 0
        self.load_bytes = 0
        self.state: State = "open"
        self.node: Node | None = None
        self.end = 0
        self.reserved = 0
        self.kept_ends: list[int] = []
        self.branch = 0
        self.computed_tokens = 0
        self.window_from = 0
        self.live: list[tuple[int, int]] = []
        self.window_locked = 0
        self.swa_reserved = 0
        self.swa_committed = 0

    @property
    def matched_tokens(self) -> int:
        """Prompt tokens that need no prefill: whole blocks, below the prompt's length."""
        return self.device_tokens + self.host_tokens
