"""What a decision costs, and folding what it leads to: ``python -m loadtest.bench.decision``.

Short prompts are placed on fleets of 4, 64 and 1,000 workers with the default policy, 16 of them in flight at
a time. *cold* prompts are a block of their own each; *shared* ones begin with one of 32 prefixes of four
blocks, which the fleet soon holds. Microseconds of CPU for each request:

* *decide*: the view of the candidates and the choice among them;
* *fold*: its operations applied, placed, first token and finished, or *fold short*: placed, and
  finished with the time of its first token.

With ``--pairs`` half of the workers prefill and half decode, and a decision is about two of them: what
their partners cost, the choice of the prefill worker, and that of the decode worker. Both are folded, so
*fold* is of five operations, and *fold short* of four.

A run decides and folds, and then folds the same operations again without deciding; the difference is what
deciding costs. Figures are medians of some runs, each on a new fleet.
"""

import argparse
import gc
import time
from collections import deque
from statistics import median

import numpy as np

from policies import (
    FULL_ATTENTION,
    UNKNOWN_KV,
    Admission,
    AdmissionRules,
    Chosen,
    DecodeFit,
    DecodeSelector,
    Finished,
    FirstToken,
    FleetState,
    Op,
    Pairing,
    Partners,
    Placed,
    RequestView,
    WorkerPut,
    make_policy,
    place,
)
from radix import chain_bytes, root_hash

REQUESTS = 4000
REPEATS = 7
INFLIGHT = 16
PREFIXES = 32
START_US = 1_000_000_000
STEP_US = 250
"""Log time between two requests."""

UNOBSERVED = DecodeFit()

PROMPT_TOKENS = {False: 300.0, True: 1250.0}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.decision", description="Cost of one decision and its fold."
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 64, 1000])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--pairs", action="store_true", help="half of the workers prefill, half decode")
    arguments = parser.parse_args()
    gc.disable()
    print("workers  prompts   decide     fold  fold short  µs CPU")
    for workers in arguments.workers:
        for shared in (False, True):
            runs = [
                costs_us(workers, arguments.requests, shared=shared, pairs=arguments.pairs)
                for _ in range(arguments.repeats)
            ]
            decide_us, fold_us, short_us = (median(figures) for figures in zip(*runs, strict=True))
            prompts = "shared" if shared else "cold"
            print(f"{workers:>7} {prompts:>8} {decide_us:>8.1f} {fold_us:>8.1f} {short_us:>11.1f}")


def costs_us(workers: int, requests: int, *, shared: bool, pairs: bool = False) -> tuple[float, float, float]:
    """CPU of deciding, of folding all operations and of folding fewer, for each request, in microseconds."""
    paths = _prompts(requests, shared=shared)
    fleet = fleet_of(workers, pairs=pairs)
    began_ns = time.process_time_ns()
    ops = decided(fleet, paths, PROMPT_TOKENS[shared], pairing_of(workers) if pairs else None)
    both_ns = time.process_time_ns() - began_ns
    fold_ns = _folded_ns(fleet_of(workers, pairs=pairs), ops)
    short_ns = _folded_ns(fleet_of(workers, pairs=pairs), shortened(ops))
    return (both_ns - fold_ns) / requests / 1e3, fold_ns / requests / 1e3, short_ns / requests / 1e3


def fleet_of(workers: int, *, pairs: bool = False) -> FleetState:
    """A fleet of idle workers with room for everything; with pairs the first half prefills."""
    fleet = FleetState()
    for number in range(workers):
        role = "plain"
        if pairs:
            role = "prefill" if number < workers // 2 else "decode"
        fleet.apply(WorkerPut(f"w{number}:1", 1, "bench", f"http://w{number}:1", role))
    return fleet


def pairing_of(workers: int) -> Pairing:
    """Who may begin, and end, a request in such a fleet."""
    prefill = workers // 2
    partners = Partners("sglang", np.arange(prefill, workers))
    return Pairing(np.arange(prefill), np.zeros(prefill, dtype=np.intp), (partners,))


def decided(
    fleet: FleetState, paths: list[bytes], prompt_tokens: float, pairing: Pairing | None = None
) -> list[Op]:
    """Place every prompt and fold what happens to it: all operations, in order."""
    policy = make_policy("expected_cost")
    slots = np.arange(len(fleet.workers())) if pairing is None else pairing.slots
    decode_selector = DecodeSelector(fleet, Admission(AdmissionRules(), fleet), lambda _: UNOBSERVED)
    ops: list[Op] = []
    prefilling: deque[str] = deque()
    decoding: deque[str] = deque()
    for number, path in enumerate(paths):
        now_us = START_US + number * STEP_US
        request_id = f"r{number:x}"
        candidates = fleet.candidates(slots, (path,), FULL_ATTENTION, prompt_tokens, 256.0, now_us)
        key = int.from_bytes(path[-8:], "little")
        view = RequestView(key, key, prompt_tokens, 300.0, number)
        decode_view = None
        if pairing is not None:
            decode_view = decode_selector.decode_view(pairing, view, UNKNOWN_KV, candidates)
            candidates = fleet.among(candidates, slots, ships=decode_view.ships())
        chosen = place(view, candidates, policy)
        assert isinstance(chosen, Chosen)
        happened: list[Op] = [
            Placed(
                request_id,
                now_us,
                fleet.at_slot(chosen.slot).worker_id,
                "bench",
                round(chosen.service_s * 1e6),
                chosen.uncached_tokens,
                round(prompt_tokens) + 300,
                (path,),
                ends=False,
            )
        ]
        if decode_view is not None:
            partner = decode_view.partner(chosen)
            assert partner is not None
            tokens, worker_id = round(prompt_tokens) + 300, fleet.at_slot(partner.slot).worker_id
            happened.append(Placed(f"d{number:x}", now_us, worker_id, "bench", 0, 0, tokens))
        prefilling.append(request_id)
        if len(prefilling) > INFLIGHT // 2:
            decoding.append(prefilling.popleft())
            if pairing is None:
                happened.append(FirstToken(decoding[-1], now_us + 1))
            else:
                happened.append(Finished(decoding[-1], now_us + 1, now_us + 1))
                decoding[-1] = "d" + decoding[-1][1:]
                happened.append(FirstToken(decoding[-1], now_us + 1))
        if len(decoding) > INFLIGHT // 2:
            happened.append(Finished(decoding.popleft(), now_us + 2))
        for op in happened:
            fleet.apply(op)
        ops += happened
    return ops


def shortened(ops: list[Op]) -> list[Op]:
    """The same requests, whose ends tell of their first tokens."""
    first_us = {op.request_id: op.at_us for op in ops if isinstance(op, FirstToken)}
    return [
        Finished(op.request_id, op.at_us, first_us.get(op.request_id, op.prefilled_us))
        if isinstance(op, Finished)
        else op
        for op in ops
        if not isinstance(op, FirstToken)
    ]


def _folded_ns(fleet: FleetState, ops: list[Op]) -> int:
    began_ns = time.process_time_ns()
    for op in ops:
        fleet.apply(op)
    return time.process_time_ns() - began_ns


def _prompts(requests: int, *, shared: bool) -> list[bytes]:
    prefixes = [chain_bytes(bytes(4), root_hash(number), 1) if shared else b"" for number in range(PREFIXES)]
    own = chain_bytes(bytes(requests), 1, 1)
    return [prefixes[number % PREFIXES] + own[8 * number : 8 * number + 8] for number in range(requests)]


if __name__ == "__main__":
    main()
