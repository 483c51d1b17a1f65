"""Speed of prefill at which a workload keeps the engines as busy as wanted.

Policies can be compared only at equal load, and a trace has one load. So not the traffic is scaled but
prefill: it takes ``time_scale`` times as long as the profile says, until the *least possible work* (every
prompt prefilled behind the content of one pooled LRU cache) is the wanted share of the workers' time. Decode
stays as it is: users who wait longer for the end of an answer ask less often, and no scale would keep engines
busy.

    utilisation(scale) = scale · least work / (workers · time of the last arrival at that scale)

In a closed loop longer answers delay the next requests, so the time depends on the scale; it is computed
without queueing. Utilisation cannot exceed what users without pauses could cause; beyond that there is no
scale.
"""

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from loadtest.engine.profiles import EngineProfile
from loadtest.simulator.bounds import pooled_lru_hit_tokens
from loadtest.simulator.least_work import prefills_s
from loadtest.simulator.workload import Workload

SCALE_RANGE = (1e-4, 1e4)
"""Beyond it the profile has nothing to do with the engines."""

STEPS = 40
"""Halvings of that range: to a millionth."""

Floats = NDArray[np.float64]


class NoSuchLoad(ValueError):
    """The workload cannot keep the workers so busy, however slow they are."""


def time_scale(
    workload: Workload,
    profile: EngineProfile,
    workers: int,
    utilisation: float,
    *,
    capacity_tokens: int,
    decode_workers: int = 0,
    speed: float = 1.0,
) -> float:
    """Find the factor of prefill times at which ``workers`` reach a ``utilisation`` from 0 to 1.

    ``capacity_tokens`` is all that they hold and share, as one LRU cache; without ``decode_workers`` the same
    workers decode; ``speed`` divides the workload's starts and delays.

    Raises:
        NoSuchLoad: There is none.
    """
    load = _Load(workload, profile, capacity_tokens, workers, decode_workers or workers, speed)
    low, high = SCALE_RANGE
    if load.utilisation(high) < utilisation:
        raise NoSuchLoad(
            f"the workload keeps {workers} workers busy for {load.utilisation(high):.0%} of the time at "
            f"most, not {utilisation:.0%}: take fewer workers or more users"
        )
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        if load.utilisation(middle) < utilisation:
            low = middle
        else:
            high = middle
    return high


def least_utilisation(
    workload: Workload,
    profile: EngineProfile,
    workers: int,
    *,
    capacity_tokens: int,
    decode_workers: int = 0,
    speed: float = 1.0,
) -> float:
    """Share of the workers' time that the least possible work takes; the arguments are those of `time_scale`.

    At 1 or more no placement keeps queues from growing as long as requests come.
    """
    return _Load(workload, profile, capacity_tokens, workers, decode_workers or workers, speed).utilisation(
        1.0
    )


class _Load:
    def __init__(
        self,
        workload: Workload,
        profile: EngineProfile,
        capacity_tokens: int,
        workers: int,
        decode_workers: int,
        speed: float,
    ) -> None:
        self._workload = workload
        self._workers = workers
        self._decode_workers = decode_workers
        self._speed = speed
        self._running_max = profile.max_running
        order = workload.in_order()
        hits = pooled_lru_hit_tokens(order, capacity_tokens, block_tokens=workload.block_tokens)
        least_s = dict(zip(map(id, order), prefills_s(order, hits, profile.prefill), strict=True))
        requests = list(workload.requests())
        self._prefill_s = np.array([least_s[id(request)] for request in requests])
        self._work_s = float(self._prefill_s.sum())
        outputs = np.array([request.output_tokens - 1.0 for request in requests])
        contexts = np.array([request.tokens for request in requests]) + outputs / 2
        decode = profile.decode
        per_token_s = (decode.request_s + decode.kv_token_s * contexts.mean()) / decode.mtp_speedup
        self._alone_s = outputs * decode.base_s / decode.mtp_speedup
        self._beside_s = outputs * per_token_s

    def utilisation(self, scale: float) -> float:
        """Share of the workers' time that the least work takes at a scale.

        Decode steps and the number of decoding requests depend on each other (Little's law): a few rounds
        settle that.
        """
        batch = 1.0
        for _ in range(3):
            decode_s = self._alone_s + batch * self._beside_s
            last_s = self._last_arrival_s(scale * self._prefill_s + decode_s)
            batch = min(max(decode_s.sum() / (last_s * self._decode_workers), 1.0), self._running_max)
        return scale * self._work_s / (self._workers * last_s)

    def _last_arrival_s(self, service_s: Floats) -> float:
        """Time of the last request, if none waits for a worker."""
        spent_s, speed = iter(service_s.tolist()), self._speed
        free_s = [0.0] * self._workload.users
        last_s = 0.0
        for session in self._workload.sessions:
            start_s = heappop(free_s) if session.start_s is None else session.start_s / speed
            ends_s: list[float] = []
            for request in session.requests:
                from_s = max((ends_s[other] for other in request.after), default=start_s)
                arrival_s = from_s + request.delay_s / speed
                last_s = max(last_s, arrival_s)
                ends_s.append(arrival_s + next(spent_s))
            if session.start_s is None:
                heappush(free_s, max(ends_s))
        return last_s
