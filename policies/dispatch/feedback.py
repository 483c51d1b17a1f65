"""Learn from answers: token counts, really cached tokens, speeds of workers.

Learned values go into the shared log, so that all replicas price with the same numbers, but not
with every answer: a change must be worth saying (``CHANGE_MIN``) and the last word a second old.
A replica goes on from the newest word of any replica (`_Share`), so a value is learned by all together.
"""

from collections import deque
from math import inf
from typing import Generic, TypeVar

import msgspec

from policies.dispatch.continuations import Continuations, end_reach
from policies.dispatch.request import RequestFacts
from policies.estimates.capacities import Reuse, learned_blocks
from policies.estimates.costs import ServiceFit, ServiceModel
from policies.estimates.decodes import DecodeFit
from policies.estimates.fetch_times import bounded, learned
from policies.estimates.slowdowns import RENEWED_US, SAID_US, Slowdowns
from policies.fleet.admission import EarlyEnds
from policies.fleet.fleet import FleetState, Worker
from policies.pricing.views import Chosen
from policies.state.ops import (
    BytesPerToken,
    CapacityLearned,
    DecodeFitted,
    EarlyRatio,
    FetchTime,
    Fitted,
    OpLog,
    SlowdownLearned,
)
from radix import HASH_BYTES, TOKENS_MAX, AttentionProfile, EndGone, Forget, Trim, whole

CHANGE_MIN = 0.02
"""Relative change of a learned value worth telling the other replicas."""

EARLY_CHANGE_MIN = 0.05
"""The same of `policies.EarlyEnds.ratio`, whose mean of 64 requests is not known better than that."""

DECODE_CHANGE_MIN = 0.05
"""The same of `policies.DecodeFit`, a mean of `decodes.MEMORY` answers that differ in length."""

FETCH_CHANGE_MIN = 0.05
"""The same of `policies.estimates.fetch_times`: half a step up."""

INTERVAL_US = 1_000_000
"""Shortest time between two words about the same value; about one that replicas share, of all replicas."""

MEMORY_TOKENS = 200_000
"""Latest prompt tokens over which bytes per token are averaged, about. Tokens, not answers: a thousand
one-line prompts, mostly chat template, say little about the one that fills the cache."""

PRIOR_TOKENS = 1_000
"""Weight of the estimate before the first answer, so that a single odd answer cannot overturn it."""

TEXT_SLACK = 1.25
"""Factor by which the start of a text may be denser in tokens than its whole: prose takes 4 to 5 bytes per
token, code and JSON 3 to 4."""

BYTES_PER_TOKEN_MIN, BYTES_PER_TOKEN_MAX = 0.25, 64.0
"""Outside of it an answer counts something else than the prompt's text (images, truncated inputs)."""

IDLE_BACKLOG_S = 0.001
"""A first token is a clean measurement of the prefill only if nothing was predicted to come before it."""

REPORTING_MAX = 10_000
MODELS_MAX = 1_000
"""Bounds on remembered workers and models; beyond them they are learned again."""

FITTED_MIN = 32
"""Prefills of a worker class before its predictions count as right to a factor of two, which they are for
machines up to thirty times slower than the profile says (`policies.estimates.costs.PRIOR_START`)."""

TOLD_OBSERVATIONS = 100
"""Weight of a word from a version that does not say how many observations its word stands for."""

UNSAID_MAX = 64
"""Own observations that are kept until they are said: they are added to what another replica says first."""

FITTED_REACH = 2.0
"""A prompt may be this many times as long as the longest observed one: only long ones show how the price of a
token grows with its context."""

FLUSHED_BLOCKS = 4
"""Length of a prediction whose complete failure says something about the worker's cache as a whole."""

FLUSHED_ANSWERS = 3
"""Number of such failures in a row: a cache that was flushed, not one that evicts."""

FRESH_US = 10_000_000
"""Age up to which an answer of this worker to a prompt with the same start counts. No engine evicts blocks
that it used so lately, unless its cache is too small to be worth remembering."""

FRESH_MAX = 64
"""Starts of prompts remembered per worker."""


class Usage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Token counts as the engine reported them, for the last prompt if there was a batch.

    Attributes:
        prompt_tokens: Prompt length.
        cached_tokens: Prompt tokens taken from the KV cache; None if the engine does not say.
        completion_tokens: Tokens generated; None if the engine does not say.
        possible: True if the counts can be right. Other counts teach nothing.
    """

    prompt_tokens: int
    cached_tokens: int | None
    completion_tokens: int | None
    possible: bool = True


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One placement of a request, as the answer must be judged by it.

    Attributes:
        request_id: Id of the attempt in the log.
        worker_id: Worker that it was sent to.
        chosen: Predictions for this worker.
        placed_us: Log time of the placement.
        guard_us: Log time of the oldest prefill that was unfinished then: blocks inserted since
            may not have been computed yet, so their absence proves nothing. The placement's own if none was.
        tokens_per_block: Estimate used for the paths.
        started_s: Monotonic seconds when it was sent.
        windowed: True if the model has sliding windows or linear states.
        used_us: Log time at which the worker had last used the predicted match; 0 if none was predicted, and
            for a batch.
        sglang: Profile of a model with windows or states, on a worker where SGLang's rule applies; else None.
    """

    request_id: str
    worker_id: str
    chosen: Chosen
    placed_us: int
    guard_us: int
    tokens_per_block: float
    started_s: float
    windowed: bool = False
    used_us: int = 0
    sglang: AttentionProfile | None = None


class _Answers:
    """Latest answers of one worker, to find out that it has lost its whole cache.

    Attributes:
        fresh: Time of its last answer to a prompt that starts with these blocks, the latest last.
        reuses: True if it had something cached since the last supposed loss.
        failures: Predictions in a row that failed completely.
        since_us: Log time at which the first of them was placed.
        failed_us: Log time at which the last of them was answered.
        prompt_tokens: Tokens of all prompts whose cached part it told.
        cached_tokens: That part.
    """

    __slots__ = (
        *("failed_us", "failures", "fresh", "reuses", "since_us"),
        *("prompt_tokens", "cached_tokens"),
    )

    def __init__(self) -> None:
        self.fresh: dict[bytes, int] = {}
        self.reuses = False
        self.failures = 0
        self.since_us = 0
        self.failed_us = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0


E = TypeVar("E", ServiceFit, EarlyEnds)


class _Share(Generic[E]):
    """Contribution of this replica to an estimate that all replicas share by a register.

    The estimate goes on from the newest word of any replica, and adds what was observed here since. So a
    replica that starts goes on from what the fleet has learned, and the newest word is an average over all.

    Attributes:
        estimate: The estimate.
        unsaid: Observations that no word has yet.
        word: Log time and replica of the word that the estimate goes on from; None if there was none.
        silent: Observations until this replica may say its own word, where the fleet had learned before.
    """

    __slots__ = ("estimate", "silent", "unsaid", "word")

    def __init__(self, estimate: E) -> None:
        self.estimate: E = estimate
        self.unsaid: deque[tuple[float, ...]] = deque(maxlen=UNSAID_MAX)
        self.word: tuple[int, str] | None = None
        self.silent = 0

    def heard(self, word: Fitted | EarlyRatio | None) -> bool:
        """Return True, and note the word, if the estimate does not go on from it already."""
        if word is None or self.word == (word.at_us, word.replica):
            return False
        if self.word is None and not self.unsaid and (word.observations or TOLD_OBSERVATIONS) >= FITTED_MIN:
            self.silent = FITTED_MIN
        self.word = word.at_us, word.replica
        return True

    def observed(self, *observation: float) -> None:
        """Note an observation that the estimate has taken."""
        self.unsaid.append(observation)
        self.silent = max(self.silent - 1, 0)

    def said(self, word: Fitted | EarlyRatio) -> None:
        """Note the own word."""
        self.unsaid.clear()
        self.word = word.at_us, word.replica


class _Seen:
    """Prompt bytes and tokens of one model, as `_Share` has them of other estimates.

    Attributes:
        bytes: Bytes of about the last `MEMORY_TOKENS`, of all replicas.
        tokens: The same prompts' tokens.
        said_bytes: Those of the bytes that a word has; the others are of prompts answered here since.
        said_tokens: The same of the tokens.
        word: Log time and replica of the word that the mean goes on from; None if there was none.
        told: Newest word that was looked at, of any replica.
    """

    __slots__ = ("bytes", "said_bytes", "said_tokens", "tokens", "told", "word")

    def __init__(self, bytes_per_token: float) -> None:
        self.bytes = self.said_bytes = bytes_per_token * PRIOR_TOKENS
        self.tokens = self.said_tokens = float(PRIOR_TOKENS)
        self.word: tuple[int, str] | None = None
        self.told: BytesPerToken | None = None

    def hear(self, told: BytesPerToken | None) -> None:
        """Note the newest word, and go on from it if it is another replica's."""
        self.told = told
        if told is not None and self.word != (told.at_us, told.replica):
            self.word = told.at_us, told.replica
            tokens = min(max(told.tokens or MEMORY_TOKENS / 4, PRIOR_TOKENS), MEMORY_TOKENS)
            unsaid_bytes, unsaid_tokens = self.bytes - self.said_bytes, self.tokens - self.said_tokens
            self.said_bytes, self.said_tokens = tokens * told.bytes_per_token, tokens
            self.bytes, self.tokens = self.said_bytes + unsaid_bytes, tokens + unsaid_tokens


class Feedback:
    """Turns answers into operations.

    Args:
        fleet: State of the workers.
        log: Publishes learned values.
        bytes_per_token: Bytes per token of a model without observations.

    Attributes:
        bytes_per_token_default: As given.
    """

    def __init__(self, fleet: FleetState, log: OpLog, *, bytes_per_token: float) -> None:
        self._fleet = fleet
        self._publish, self._replica = log.publish, log.replica
        self.bytes_per_token_default = bytes_per_token
        self._bytes_per_token = fleet.registers.of(BytesPerToken).known
        self._seen: dict[str, _Seen] = {}  # per model
        self._fits: dict[str, _Share[ServiceFit]] = {}
        self._slowdowns: dict[str, Slowdowns] = {}
        self._early: dict[str, _Share[EarlyEnds]] = {}
        self._decodes: dict[str, DecodeFit] = {}
        self._said_us: dict[str, int] = {}
        self._reporting: dict[str, _Answers] = {}
        self._capacities: dict[str, tuple[int, float]] = {}  # per worker: log time, blocks
        self._continuations = Continuations()
        self._fetches: dict[str, tuple[int, float]] = {}  # per pool: log time, factor

    def bytes_per_token(self, model: str) -> float:
        """The current estimate for a model."""
        return self._fleet.bytes_per_token(model, self.bytes_per_token_default)

    def learn_decodes(self, worker_class: str) -> DecodeFit:
        """Learn how fast a worker class decodes, from now on; return the fit, which changes with each answer.

        Nothing is learned of a class before the first call: in a fleet without pairs no decision needs it.
        """
        fit = self._decodes.get(worker_class)
        if fit is None:
            fit = self._decodes[worker_class] = DecodeFit()
        return fit

    def knows_prefills(self, worker_class: str, tokens: int) -> bool:
        """True if this replica has seen enough of a worker class to predict a prefill of this length."""
        share = self._fits.get(worker_class)
        fit = None if share is None else share.estimate
        return (
            fit is not None and fit.observations >= FITTED_MIN and tokens <= FITTED_REACH * fit.longest_tokens
        )

    def understood(self, worker_id: str, usage: Usage) -> Usage:
        """Read a missing ``cached_tokens`` as the worker means it.

        SGLang leaves it out when nothing was cached, and an engine that was not told to report it leaves it
        out always. A worker that has ever reported it means zero.
        """
        if not usage.possible:
            return usage
        if usage.cached_tokens is not None:
            if worker_id not in self._reporting:
                if len(self._reporting) >= REPORTING_MAX:
                    self._reporting.clear()
                self._reporting[worker_id] = _Answers()
            return usage
        if worker_id in self._reporting:
            return Usage(usage.prompt_tokens, 0, usage.completion_tokens)
        return usage

    def answered(
        self,
        request: RequestFacts,
        attempt: Attempt,
        usage: Usage,
        ttft_s: float | None,
        now_us: int,
        decode_s: float = 0.0,
        *,
        decodes: bool = True,
    ) -> bool:
        """Learn from a complete answer to a single prompt.

        A report on a batch may be about one of its prompts only.

        Args:
            request: The request's facts.
            attempt: Its placement.
            usage: Counts that the engine reported.
            ttft_s: Seconds from sending to the end of the prefill, which the first body byte marks; None if
                nothing does (an answer that is not streamed).
            now_us: Log time.
            decode_s: Seconds from the first body byte to the last, of an answer that is streamed.
            decodes: True if this worker also decoded the answer.

        Returns:
            True if the answer shows that the worker has lost its whole cache.
        """
        if len(request.paths) != 1 or not usage.possible:
            return False
        flushed = False
        if prompt_bytes := request.prompt_bytes or request.tokenized_bytes:
            self._learn_bytes(request.model or "", prompt_bytes, usage.prompt_tokens, now_us)
        if usage.cached_tokens is not None and not request.computes_all:
            answers = self._reporting.get(attempt.worker_id)
            if answers is not None:
                answers.prompt_tokens += usage.prompt_tokens
                answers.cached_tokens += usage.cached_tokens
            self._learn_fetch(attempt, usage.cached_tokens, now_us)
            if attempt.chosen.safe_tokens or usage.cached_tokens:
                self._correct_tree(request, attempt, usage.prompt_tokens, usage.cached_tokens, now_us)
            if attempt.sglang is not None:
                self._learn_end(request, attempt, usage, now_us, decodes=decodes)
            if not self._says_itself(request, attempt):
                flushed = self._notice_flush(request.paths[0], attempt, usage.cached_tokens, now_us)
        if ttft_s is None or (worker := self._fleet.worker(attempt.worker_id)) is None:
            return flushed
        chosen = attempt.chosen
        predicted_s = chosen.estimated_ttft_s - chosen.transfer_s
        if predicted_s - chosen.service_s <= IDLE_BACKLOG_S:
            cached = chosen.safe_tokens if usage.cached_tokens is None else usage.cached_tokens
            # The class learns the time that its other workers would have taken.
            class_s = ttft_s / self._fleet.columns.slowdown(worker.slot)
            if attempt.guard_us >= attempt.placed_us:  # nor was a late one under way
                self._learn_slowdown(worker, usage.prompt_tokens, cached, ttft_s, now_us)
            self._learn_service(worker.worker_class, usage.prompt_tokens, cached, class_s, now_us)
        else:
            self._learn_early(worker.worker_class, predicted_s, ttft_s, now_us)
        if self._decodes and usage.completion_tokens is not None:
            self._learn_decode(worker, decode_s, usage.completion_tokens, now_us)
        return flushed

    def decoded(self, worker_id: str, decode_s: float, tokens: int, now_us: int) -> None:
        """Learn from an answer that one worker prefilled and this one decoded.

        Args:
            worker_id: Id of the decode worker.
            decode_s: Seconds from its first token to its last.
            tokens: Tokens of the answer.
            now_us: Log time.
        """
        worker = self._fleet.worker(worker_id)
        if worker is not None:
            self._learn_decode(worker, decode_s, tokens, now_us)

    def hits(self, worker_id: str) -> tuple[int, int]:
        """Prompt tokens of the answers whose cached part a worker told, and that part; since the start."""
        answers = self._reporting.get(worker_id)
        return (0, 0) if answers is None else (answers.prompt_tokens, answers.cached_tokens)

    def abandoned(self, request: RequestFacts, attempt: Attempt) -> None:
        """Take out the blocks inserted on trust by a placement that failed before its first token."""
        if len(request.paths) != 1:
            return
        path = request.paths[0]
        matched_blocks = int(attempt.chosen.matched_tokens / attempt.tokens_per_block + 0.5)
        if 8 * matched_blocks < len(path):
            self._publish(Trim(attempt.worker_id, path[: 8 * (matched_blocks + 1)], attempt.placed_us + 1))

    def _correct_tree(
        self, request: RequestFacts, attempt: Attempt, prompt_tokens: int, cached_tokens: int, now_us: int
    ) -> None:
        """Trim the blocks that the worker no longer had when the request arrived.

        The request's own path is held again by now, and was used later than the trimmed blocks; these are
        older branches below the first missing block: other sessions with the same start. So a shortfall
        must be more than an error of the estimate: blocks are measured in this prompt's own tokens, with
        `TEXT_SLACK` for text.

        If a worker fetched nothing of the blocks that its pool was believed to hold, the pool lacks them. A
        part proves nothing: engines stop a fetch when the prefill can begin.

        A shortfall of a model with windows or states says nothing about blocks: mostly they are there, and
        the window at the predicted boundary is not (`radix.windows`). So only the ends go from which it did
        not go on; trimming from the first block on lost a third of all reuse on conversations
        (docs/policy-study.md).

        Nothing is trimmed for token ids on a worker whose engine reports removed blocks itself.
        """
        chosen = attempt.chosen
        estimated_tokens = max(chosen.safe_tokens + chosen.uncached_tokens, 1)
        tokens_per_block = attempt.tokens_per_block * prompt_tokens / estimated_tokens
        slack = TEXT_SLACK if request.prompt_bytes else 1.0
        held_blocks = int(slack * cached_tokens / tokens_per_block)
        own_tokens = chosen.safe_tokens - chosen.fetched_tokens
        predicted_blocks = int(own_tokens / attempt.tokens_per_block + 0.5)
        path = request.paths[0][: 8 * (held_blocks + 1)]
        if not attempt.windowed and (not own_tokens or 0 < attempt.used_us < attempt.guard_us):
            self._learn_capacity(request.paths[0], attempt, predicted_blocks, held_blocks, now_us)
        if held_blocks + 1 < predicted_blocks:
            if self._says_itself(request, attempt):
                return
            if attempt.windowed:
                path, ends = request.paths[0][: 8 * predicted_blocks], predicted_blocks - held_blocks
                self._publish(EndGone(attempt.worker_id, path, attempt.guard_us, ends))
            else:
                self._publish(Trim(attempt.worker_id, path, attempt.guard_us))
        elif (
            chosen.fetched_tokens
            and held_blocks <= predicted_blocks
            and 8 * held_blocks < len(request.paths[0])
        ):
            pool = self._fleet.pool_of(attempt.worker_id)
            if attempt.windowed:
                path = request.paths[0][: 8 * int(chosen.safe_tokens / attempt.tokens_per_block + 0.5)]
            if pool is not None:
                self._publish(Trim(pool, path, attempt.guard_us))

    def _learn_end(
        self, request: RequestFacts, attempt: Attempt, usage: Usage, now_us: int, *, decodes: bool
    ) -> None:
        """Tell where the engine can go on behind this answer, unless its engine says so itself."""
        chosen, cached_tokens = attempt.chosen, usage.cached_tokens
        assert attempt.sglang is not None
        assert cached_tokens is not None
        answered = usage.completion_tokens or 0
        lengths = usage.prompt_tokens, usage.prompt_tokens + (max(answered - 1, 0) if decodes else 0)
        path = request.paths[0]
        matched_blocks = int(chosen.matched_tokens / attempt.tokens_per_block + 0.5)
        estimated_tokens = max(chosen.safe_tokens + chosen.uncached_tokens, 1)
        tokens_per_block = attempt.tokens_per_block * usage.prompt_tokens / estimated_tokens
        blocks = len(path) // HASH_BYTES
        end = self._continuations.answered(
            path,
            matched_blocks,
            lengths,
            cached_tokens,
            attempt.sglang,
            tail_tokens=usage.prompt_tokens - blocks * tokens_per_block,
            branched=chosen.matched_tokens > chosen.safe_tokens,
        )
        if end is not None and not self._says_itself(request, attempt):
            self._publish(end_reach(attempt.worker_id, end, blocks, tokens_per_block, now_us))

    def _learn_capacity(
        self, path: bytes, attempt: Attempt, predicted_blocks: int, held_blocks: int, now_us: int
    ) -> None:
        """Learn how much the worker keeps, if its engine does not report removed blocks itself.

        Nothing is learned of blocks that were used so lately that they may not have been computed yet (the
        guard).
        """
        fleet, worker_id = self._fleet, attempt.worker_id
        worker = fleet.worker(worker_id)
        if worker is None or fleet.tracks(worker_id):
            return
        prompt_blocks = len(path) // HASH_BYTES
        reuse = Reuse(prompt_blocks, predicted_blocks, held_blocks, 0)
        if reuse.is_short:
            used_blocks = fleet.tree.blocks_since(worker.slot, attempt.used_us)
            reuse = reuse._replace(distance=used_blocks - (prompt_blocks - predicted_blocks))
        elif not reuse.is_more:
            return
        at_us, known = self._capacities.get(worker_id, (0, inf))
        learned = fleet.learned_capacity(worker_id)
        block_tokens = fleet.block_tokens(worker.slot)
        if learned is not None and learned.at_us > at_us:
            known = learned.tokens / block_tokens
        elif not at_us and (believed := fleet.cache_tokens(worker)):
            known = believed / block_tokens
        blocks = learned_blocks(known, reuse)
        if blocks != known:  # answers raise it only to the worker's report, or the bound
            blocks = min(blocks, (fleet.reported_tokens(worker) or TOKENS_MAX) / block_tokens)
        if blocks == known:
            return
        if len(self._capacities) >= REPORTING_MAX:
            self._capacities.clear()
        self._capacities[worker_id] = now_us, blocks
        if self._may_say(f"capacity {worker_id}", now_us):
            tokens = whole(blocks * block_tokens, TOKENS_MAX)
            self._publish(CapacityLearned(worker_id, now_us, self._replica, tokens))

    def _says_itself(self, request: RequestFacts, attempt: Attempt) -> bool:
        """True if the worker's engine reports the prompt's blocks (`state.slot_registers`): not of text."""
        return request.prompt_token_ids > 0 and self._fleet.tracks(attempt.worker_id)

    def _notice_flush(self, path: bytes, attempt: Attempt, cached_tokens: int, now_us: int) -> bool:
        """Forget a worker's blocks if several prompts in a row found nothing cached that must have been.

        Must: the worker, which does reuse its blocks, had answered a prompt with this start a moment ago,
        and had no prefill under way when this one was sent. In a row: one was sent after the other
        was answered, since requests that failed together may have waited for one prefill together.
        """
        if len(path) < 8 * FLUSHED_BLOCKS or (answers := self._reporting.get(attempt.worker_id)) is None:
            return False
        start = path[: 8 * FLUSHED_BLOCKS]
        age_us = attempt.placed_us - answers.fresh.pop(start, 0)
        answers.fresh[start] = now_us
        if len(answers.fresh) > FRESH_MAX:
            del answers.fresh[next(iter(answers.fresh))]
        if cached_tokens > 0:
            answers.reuses, answers.failures = True, 0
        elif (
            answers.reuses
            and 0 < age_us < FRESH_US
            and attempt.chosen.safe_tokens >= FLUSHED_BLOCKS * attempt.tokens_per_block
            and attempt.guard_us >= attempt.placed_us > answers.failed_us
        ):
            if not answers.failures:
                answers.since_us = attempt.placed_us
            answers.failures += 1
            answers.failed_us = now_us
            if answers.failures == FLUSHED_ANSWERS:
                answers.reuses, answers.failures = False, 0
                self._publish(Forget(attempt.worker_id, answers.since_us))
                return True
        return False

    def _learn_bytes(self, model: str, prompt_bytes: int, prompt_tokens: int, now_us: int) -> None:
        if not BYTES_PER_TOKEN_MIN <= prompt_bytes / prompt_tokens <= BYTES_PER_TOKEN_MAX:
            return
        told, seen = self._bytes_per_token.get(model), self._seen.get(model)
        shared = self.bytes_per_token_default if told is None else told.bytes_per_token
        if seen is None:
            if len(self._seen) >= MODELS_MAX:
                self._seen.clear()
            seen = self._seen[model] = _Seen(shared)
        if told is not seen.told:
            seen.hear(told)
        seen_bytes, seen_tokens = seen.bytes + prompt_bytes, seen.tokens + prompt_tokens
        mean = seen_bytes / seen_tokens
        if seen_tokens > MEMORY_TOKENS:
            kept = MEMORY_TOKENS / seen_tokens
            seen_bytes, seen_tokens = seen_bytes * kept, seen_tokens * kept
            seen.said_bytes *= kept
            seen.said_tokens *= kept
        seen.bytes, seen.tokens = seen_bytes, seen_tokens
        if abs(mean - shared) > CHANGE_MIN * shared and self._may_say(f"bytes {model}", now_us):
            seen.word, seen.said_bytes, seen.said_tokens = (now_us, self._replica), seen_bytes, seen_tokens
            self._publish(BytesPerToken(model, now_us, self._replica, mean, round(seen.tokens)))

    def _learn_service(
        self, worker_class: str, prompt_tokens: int, cached_tokens: int, ttft_s: float, now_us: int
    ) -> None:
        share = self._fits.get(worker_class)
        if share is None:
            fit = ServiceFit(self._fleet.profile(worker_class))
            share = self._fits[worker_class] = _Share(fit)
        fit, told = share.estimate, self._fleet.registers.newest(Fitted, worker_class)
        if told is not None and share.heard(told):
            model = ServiceModel(told.a_s, told.b_s, told.c0_tokens)
            fit.go_on_from(model, told.observations or TOLD_OBSERVATIONS, told.sums)
            for observation in share.unsaid:
                fit.observe(*observation)
        observation = max(prompt_tokens - cached_tokens, 1), cached_tokens, ttft_s
        fit.observe(*observation)
        share.observed(*observation)
        if share.silent or (told is not None and 0 <= now_us - told.at_us < INTERVAL_US):
            return
        new, old = fit.model(), self._fleet.service_model(worker_class)
        moved = max(
            abs(new.a_s - old.a_s) / max(old.a_s, 1e-3),
            abs(new.b_s - old.b_s) / max(old.b_s, 1e-9),
            abs(new.c0_tokens - old.c0_tokens) / old.c0_tokens,
        )
        if moved > CHANGE_MIN and self._may_say(f"fit {worker_class}", now_us):
            word = Fitted(
                worker_class, now_us, self._replica, new.a_s, new.b_s, new.c0_tokens, fit.weight, fit.sums()
            )
            share.said(word)
            self._publish(word)

    def _learn_slowdown(
        self, worker: Worker, prompt_tokens: int, cached_tokens: int, ttft_s: float, now_us: int
    ) -> None:
        fleet, worker_id, worker_class = self._fleet, worker.worker_id, worker.worker_class
        seen = self._slowdowns.get(worker_class)
        if seen is None:
            if len(self._slowdowns) >= MODELS_MAX:
                self._slowdowns.clear()
            seen = self._slowdowns[worker_class] = Slowdowns()
        prefill = max(prompt_tokens - cached_tokens, 1), cached_tokens, ttft_s
        model, since_us = fleet.service_model(worker_class), fleet.forgot_us(worker.slot)
        seen.observe(worker_id, prefill, model, now_us, since_us)
        told = fleet.registers.newest(SlowdownLearned, worker_id)
        age_us = SAID_US if told is None else now_us - told.at_us
        if 0 <= age_us < SAID_US:
            return
        known = fleet.columns.slowdown(worker.slot)
        slowdown = seen.word(worker_id, known, now_us, renews=age_us >= RENEWED_US)
        if slowdown is not None:
            self._publish(SlowdownLearned(worker_id, now_us, self._replica, slowdown))

    def _learn_early(self, worker_class: str, predicted_s: float, ttft_s: float, now_us: int) -> None:
        share = self._early.get(worker_class)
        if share is None:
            share = self._early[worker_class] = _Share(EarlyEnds())
        early, told = share.estimate, self._fleet.registers.newest(EarlyRatio, worker_class)
        if told is not None and share.heard(told):
            early.go_on_from(told.ratio, told.observations or TOLD_OBSERVATIONS)
            for observation in share.unsaid:
                early.observe(*observation)
        early.observe(predicted_s, ttft_s)
        share.observed(predicted_s, ttft_s)
        if share.silent or (told is not None and 0 <= now_us - told.at_us < INTERVAL_US):
            return
        known = self._fleet.early_ratio(worker_class)
        if abs(early.ratio - known) > EARLY_CHANGE_MIN * known and self._may_say(
            f"early {worker_class}", now_us
        ):
            word = EarlyRatio(worker_class, now_us, self._replica, early.ratio, early.weight)
            share.said(word)
            self._publish(word)

    def _learn_fetch(self, attempt: Attempt, cached_tokens: int, now_us: int) -> None:
        """Learn how long fetches from the worker's pool take, from the part of one that came in time."""
        chosen, pool = attempt.chosen, self._fleet.pool_of(attempt.worker_id)
        came = cached_tokens - (chosen.safe_tokens - chosen.fetched_tokens)
        if pool is None or came < 0:  # It lacks blocks of its own cache, which says nothing of the pool.
            return
        at_us, factor = self._fetches.get(pool, (0, 1.0))
        told = self._fleet.registers.newest(FetchTime, pool)
        known = 1.0 if told is None else bounded(told.factor)
        if told is not None and told.at_us > at_us:
            factor = known
        factor = learned(factor, came / chosen.fetched_tokens if chosen.fetched_tokens else None)
        if len(self._fetches) >= MODELS_MAX:
            self._fetches.clear()
        self._fetches[pool] = now_us, factor
        if abs(factor - known) > FETCH_CHANGE_MIN * known and self._may_say(f"fetch {pool}", now_us):
            self._publish(FetchTime(pool, now_us, self._replica, factor))

    def _learn_decode(self, worker: Worker, decode_s: float, tokens: int, now_us: int) -> None:
        """Learn from an answer that has just ended, and is no longer one of those in flight."""
        worker_class = worker.worker_class
        fit = self._decodes.get(worker_class)
        if fit is None:
            return
        loads, slot = self._fleet.loads, worker.slot
        others = loads.inflight_requests.item(slot) - loads.prefill_requests.item(slot)
        fit.observe(1.0 + others, decode_s, tokens)
        if fit.known and self._may_say(f"decode {worker_class}", now_us):
            told, usual = self._fleet.decode_fit(worker_class), fit.line()[2]
            known = (told.decode_s, told.tpot_s(usual))
            if any(
                abs(new - old) > DECODE_CHANGE_MIN * old
                for new, old in zip((fit.decode_s, fit.tpot_s(usual)), known, strict=True)
            ):
                self._publish(DecodeFitted(worker_class, now_us, self._replica, *fit.line()))

    def _may_say(self, what: str, now_us: int) -> bool:
        if now_us - self._said_us.get(what, -INTERVAL_US) < INTERVAL_US:
            return False
        if len(self._said_us) >= 2 * MODELS_MAX:
            self._said_us.clear()
        self._said_us[what] = now_us
        return True
