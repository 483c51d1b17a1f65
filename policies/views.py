"""What a decision may see: frozen views of one request and of the workers that may take it.

Workers come as *columns*: one numpy array per property, one row per candidate, so that
scoring 1,000 workers costs a dozen vector operations and no Python loop. A formula
written for columns reads like the formula on paper.

They are msgspec structs, not dataclasses: one of each is made per request, and a frozen dataclass sets
its fields one by one in Python (0.15 us each, a third of a small placement).
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class RequestView(msgspec.Struct, frozen=True, gc=False):
    """One request, as policies see it.

    Attributes:
        key: 64-bit hash of the whole prompt (or session): breaks ties by rendezvous hashing.
        prefix_key: 64-bit hash of the start of the prompt, for the hashing policies.
        prompt_tokens: Estimated prompt length, > 0.
        output_tokens: Expected output length, >= 0.
        sequence: How many requests this replica has placed before: what turn-taking policies count.
    """

    key: int
    prefix_key: int
    prompt_tokens: float
    output_tokens: float
    sequence: int


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """The workers that may take a request; all arrays have the same length n >= 1.

    Attributes:
        slots: Row number of the worker in `policies.fleet.FleetState` (intp).
        worker_hash: 64-bit hash of the worker id (uint64), for rendezvous and consistent hashing.
        matched_tokens: Prefix match, 0 <= matched <= prompt.
        safe_tokens: Window-safe prefix match, 0 <= safe <= matched. What a score uses.
        backlog_s: V: seconds of prefill reserved by all replicas and not yet done.
        prefill_tokens: Uncached tokens reserved and not yet prefilled.
        inflight_requests: Requests in flight, of all replicas.
        inflight_tokens: Prompt plus expected output tokens of the requests in flight.
        held_tokens: Tokens the tree believes this worker holds.
        a_s: Service model: fixed seconds per prefill.
        b_s: Service model: seconds per uncached token at an empty context.
        c0_tokens: Service model: context that doubles the cost of a token.
        congestion_per_s: kappa: min(kappa_max, arrivals per second / (1 - utilisation)).
        fetch_s: F: seconds to fetch the match from a shared tier; 0 if local.
        transfer_s: X: exposed seconds of KV transfer to decode or across a link.
    """

    slots: NDArray[np.intp]
    worker_hash: NDArray[np.uint64]
    matched_tokens: Floats
    safe_tokens: Floats
    backlog_s: Floats
    prefill_tokens: Floats
    inflight_requests: Floats
    inflight_tokens: Floats
    held_tokens: Floats
    a_s: Floats
    b_s: Floats
    c0_tokens: Floats
    congestion_per_s: Floats
    fetch_s: Floats
    transfer_s: Floats

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.slots)


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """The outcome: this worker, and what is expected of it.

    Attributes:
        slot: Row of the worker in the fleet state.
        matched_tokens: Its prefix match.
        safe_tokens: Its window-safe match: the tokens we predict the engine to reuse.
        uncached_tokens: Prompt minus safe tokens.
        service_s: Predicted prefill time.
        estimated_ttft_s: Predicted backlog plus fetch plus prefill plus transfer.
        reason: Why, as a stable word for metrics and logs (see `policies.placement`).
    """

    slot: int
    matched_tokens: int
    safe_tokens: int
    uncached_tokens: int
    service_s: float
    estimated_ttft_s: float
    reason: str


class Shed(msgspec.Struct, frozen=True, gc=False):
    """The outcome: nobody may take it now.

    Attributes:
        reason: Stable word for metrics, logs and the error code.
        retry_after_s: When trying again is sensible, seconds, > 0.
    """

    reason: str
    retry_after_s: float
