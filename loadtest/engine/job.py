"""One prompt with one answer on its way through an engine, and the sink that hears of it.

                     admit                  last chunk              last token
    submit -> WAITING ----> PREFILLING ----------------> RUNNING ---------------> DONE
                 |                         role prefill: HELD -- release --> DONE
                 +--> ARRIVING (role decode, room reserved) -- deliver --> RUNNING
    abort: from anywhere to DONE

Prompts are packed chained hashes of their full KV blocks (`radix.chain_bytes`): the emulator keeps tokens
beside the job, the simulator has none.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, Protocol

from loadtest.engine.kv.lease import Lease

Role = Literal["plain", "prefill", "decode"]


class State(IntEnum):
    """State of a job."""

    WAITING = 0
    PREFILLING = 1
    ARRIVING = 2
    RUNNING = 3
    HELD = 4
    DONE = 5


class Sink(Protocol):
    """Receiver of a job's tokens. May not call the scheduler back synchronously."""

    def emitted(self, job: "Job") -> None:
        """More tokens came: ``job.emitted_tokens`` in all. Without ``job.stream`` only the first is told."""

    def finished(self, job: "Job", reason: str) -> None:
        """No more tokens come: ``job.reason``, ``abort``, or ``refused`` if it can never fit."""


@dataclass(slots=True, eq=False)
class Job:
    """One prompt with one answer.

    Attributes:
        blocks: Packed chained hashes of the prompt's full blocks.
        prompt_tokens: > 0.
        output_tokens: Length of the answer; 0 for embeddings.
        final_blocks: Blocks of prompt and answer that the engine holds afterwards.
        final_tokens: Tokens whose KV exists afterwards: all but the last sampled one.
        role: ``plain`` does everything; ``prefill`` ends with the first token and keeps its blocks until
            released; ``decode`` gets its KV delivered and computes no prompt.
        stream: Tell the sink all tokens as they come, not the first and the end only.
        reason: Told to the sink at the end.
        index: Number of the answer within its request.
        session: Name of its session, by which a shared pool places it; empty if unknown.
        admitted: Called once it has its room: KV may be sent to a decode job, and a prefill job begins.
        delivered: A decode job's KV is there.
        lease: Its hold on the KV cache; kept after the end for its counts.
        rank: Data-parallel rank. One that is given here is taken; -1 leaves the choice to the engine.
        cached_tokens: Prompt tokens that needed no prefill; known from admission on.
        context_tokens: Prompt tokens that are cached or computed so far.
        started_s: Start of its prefill; for a decode job, time of its room.
        joined: Progress of the decode batch when it joined; see `loadtest.engine.batch`.
        backlog_tokens: Its part of its rank's remaining work.
    """

    blocks: bytes
    prompt_tokens: int
    output_tokens: int
    final_blocks: bytes
    final_tokens: int
    sink: Sink
    role: Role = "plain"
    stream: bool = False
    reason: str = "stop"
    index: int = 0
    id: str = ""
    session: bytes = b""
    admitted: Callable[["Job"], None] | None = None
    rank: int = -1
    delivered: bool = False
    state: State = field(init=False, default=State.WAITING)
    lease: Lease = field(init=False)
    cached_tokens: int = field(init=False, default=0)
    context_tokens: int = field(init=False, default=0)
    emitted_tokens: int = field(init=False, default=0)
    arrived_s: float = field(init=False, default=0.0)
    started_s: float = field(init=False, default=0.0)
    first_s: float = field(init=False, default=0.0)
    finished_s: float = field(init=False, default=0.0)
    was_admitted: bool = field(init=False, default=False)
    joined: float = field(init=False, default=0.0)
    backlog_tokens: int = field(init=False, default=0)

    @property
    def done(self) -> bool:
        """True if it has left, or only holds blocks for another engine."""
        return self.state >= State.HELD
