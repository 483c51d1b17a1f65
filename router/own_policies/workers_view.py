"""The form of a policy that a user writes, and its view of the workers.

    place ──> OwnCosts(request, candidates) ──> user's function(request, workers) ──> costs, one per worker

A user's policy sees `WorkersView`: the same columns as the policies of `policies.scoring`, read-only, so that
a slip such as ``workers.inflight_requests += 1`` is an error and no damage to the shared state.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from policies import Candidates, Floats, RequestView

_T = TypeVar("_T", bound=np.generic)


class WorkersView:
    """The workers that may take a request, n >= 1: read-only columns with one row per worker.

    Columns are computed when they are read; keep one in a variable to use it twice. They must not be kept
    after the policy has returned.
    """

    __slots__ = ("_candidates", "_prompt_tokens")

    def __init__(self, candidates: Candidates, prompt_tokens: float) -> None:
        self._candidates, self._prompt_tokens = candidates, prompt_tokens

    def __len__(self) -> int:
        """Number of workers."""
        return len(self._candidates)

    @property
    def worker_hash(self) -> NDArray[np.uint64]:
        """64-bit hash of each worker's id, equal in all replicas (xxh3, seed 0)."""
        return _read_only(self._candidates.worker_hash)

    @property
    def matched_tokens(self) -> Floats:
        """Leading tokens of the prompt that each worker holds, 0 to ``request.prompt_tokens``."""
        return _read_only(self._candidates.matched_tokens)

    @property
    def cached_tokens(self) -> Floats:
        """Leading tokens that the engine will reuse: below ``matched_tokens`` with sliding windows."""
        return _read_only(self._candidates.safe_tokens)

    @property
    def backlog_s(self) -> Floats:
        """Seconds of prefill that all replicas have sent to each worker and that are not done."""
        return _read_only(self._candidates.backlog_s)

    @property
    def prefill_tokens(self) -> Floats:
        """Uncached prompt tokens that are sent to each worker and not prefilled yet."""
        return _read_only(self._candidates.prefill_tokens)

    @property
    def inflight_requests(self) -> Floats:
        """Requests in flight at each worker, of all replicas."""
        return _read_only(self._candidates.inflight_requests)

    @property
    def inflight_tokens(self) -> Floats:
        """Prompt plus expected output tokens of the requests in flight."""
        return _read_only(self._candidates.inflight_tokens)

    @property
    def held_tokens(self) -> Floats:
        """Tokens that each worker's cache is believed to hold, of all prompts."""
        return _read_only(self._candidates.held_tokens)

    @property
    def estimated_ttft_s(self) -> Floats:
        """Predicted seconds to the request's first token: backlog, fetch, prefill and transfer."""
        times = self._candidates.times(self._prompt_tokens)
        return _read_only(times.ready_s + times.work_s - times.stall_s - times.spill_s)

    @property
    def service_s(self) -> Floats:
        """Predicted seconds of the request's prefill on each worker, without its queue."""
        return _read_only(self._candidates.times(self._prompt_tokens).service_s)


class OwnPolicy(Protocol):
    """A user's policy: a function, or an object that can be called.

    Each keyword-only argument with a number as its default is an option of the policy
    (``placement.policy_options``, or ``NAME:option=2`` in ``cacheway simulate``).
    """

    def __call__(self, request: RequestView, workers: WorkersView, /) -> Floats:
        """Return the cost of each worker: an array of finite numbers, or +inf to leave a worker out.

        The lowest cost wins; costs within 1e-9 of each other are a tie, which the request's hash breaks.
        """


class OwnCosts:
    """Costs of a user's policy, in the form that `policies.place` asks for.

    ``judge`` checks an answer for n workers and returns it as costs; it may raise any error.
    """

    __slots__ = ("_call", "_judge")

    def __init__(self, call: Callable[..., object], judge: Callable[[object, int], Floats]) -> None:
        self._call, self._judge = call, judge

    def __call__(self, request: RequestView, candidates: Candidates, **options: float) -> Floats:
        """Ask the policy."""
        workers = WorkersView(candidates, request.prompt_tokens)
        return self._judge(self._call(request, workers, **options), len(candidates))


def judged_costs(answer: object, workers: int) -> Floats:
    """Return a policy's answer as costs.

    Raises:
        ValueError: It is no array of ``workers`` numbers, has NaN or -inf in it, or leaves out all.
    """
    if not isinstance(answer, np.ndarray):
        raise ValueError(f"it returned {type(answer).__name__}, not an array of numpy")  # noqa: TRY004
    if answer.shape != (workers,):
        raise ValueError(f"it returned an array of shape {answer.shape} for {workers} workers")
    if answer.dtype.kind not in "iuf":
        raise ValueError(f"it returned an array of {answer.dtype}, not of numbers")
    costs: Floats = answer if answer.dtype == np.float64 else answer.astype(np.float64)
    lowest = costs.min()
    if not lowest > -np.inf:  # the minimum is NaN if one of them is
        raise ValueError(f"it returned {lowest} as the cost of a worker")
    if lowest == np.inf:
        raise ValueError("it leaves out every worker: all costs are inf")
    return costs


def _read_only(column: NDArray[_T]) -> NDArray[_T]:
    view = column.view()
    view.flags.writeable = False
    return view
