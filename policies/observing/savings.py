"""Which prompt starts save most prefill: the few that matter of very many, in bounded space.

A *start* is the first block of a prompt, which all requests of an application share whose tools or system
prompt come first. What counts is how many tokens of such requests did not have to be prefilled.

Space-saving (Metwally, Agrawal and El Abbadi, ICDT 2005), with the places that are full freed in batches:

    at most 2·m entries ──one more──> the m greatest stay       floor := the greatest that went
    an entry that comes later begins with error = floor         since it may be one that went

So of an entry the true sum is within ``saved`` and ``saved + error``, who is not listed saved at most
``floor``, and ``floor <= total/m``: of the sums of all entries, errors included, no more goes in
than was saved, since what goes is at least as much as what the newcomers began with.

Applications come and go, so what is shown is this hour's and the last one's (`SavingsWindow`).
"""

from collections.abc import Sequence

import msgspec

ENTRIES_MAX = 512
"""m: some 100 KB."""

WINDOW_US = 3_600_000_000
"""How long one generation gathers."""

MODEL_CHARS_MAX = 200
"""Longer names come from clients only."""


Served = tuple[int, str, int, int, int | None]
"""A request: hash of its first block, the model it asked for, its prompt tokens, how many of them were
expected to be cached, and how many the engine reports; None if it does not."""


class Entry(msgspec.Struct, gc=False):
    """What requests with one start saved, since it is listed.

    Attributes:
        key: 64-bit hash of the first block.
        model: What they asked for.
        error: What they may have saved before, at most.
        prompt_tokens: All of their prompts.
        predicted_tokens: Not prefilled, as predicted when they were placed.
        reported_tokens: Not prefilled, as reported, of those of which it was.
        reported_requests: How many that are.
        silent_tokens: As predicted, of the others.
        silent_requests: How many these are.
        last_us: Log time when the latest were counted.
    """

    key: int
    model: str = ""
    error: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    reported_tokens: int = 0
    reported_requests: int = 0
    silent_tokens: int = 0
    silent_requests: int = 0
    last_us: int = 0

    @property
    def saved_tokens(self) -> int:
        """Tokens not prefilled: as reported by the engine, else as predicted."""
        return self.reported_tokens + self.silent_tokens

    @property
    def requests(self) -> int:
        """How many there were."""
        return self.reported_requests + self.silent_requests


class Savings:
    """The sketch.

    Args:
        entries_max: m.

    Attributes:
        entries: By key, at most twice as many.
        floor: What those that are not listed saved at most.
        total_tokens: What all saved.
        requests: How many there were, listed or not.
    """

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        assert entries_max > 0
        self.entries: dict[int, Entry] = {}
        self.floor = 0
        self.total_tokens = 0
        self.requests = 0
        self._entries_max = entries_max

    def add(self, served: Sequence[Served], at_us: int) -> None:
        """Count requests: many at once, since a call for each would cost more than all else.

        Args:
            served: The requests.
            at_us: Log time.
        """
        entries, total_tokens = self.entries, 0
        for key, model, prompt_tokens, predicted, reported in served:
            saved = predicted if reported is None else reported
            total_tokens += saved
            entry = entries.get(key)
            if entry is None:
                if not saved:
                    continue  # nothing to list yet: most prompts that nobody shares never come further
                if len(entries) >= 2 * self._entries_max:
                    entries = self._free()
                entry = entries[key] = Entry(key, model[:MODEL_CHARS_MAX], self.floor)
            entry.prompt_tokens += prompt_tokens
            entry.predicted_tokens += predicted
            if reported is None:
                entry.silent_tokens += predicted
                entry.silent_requests += 1
            else:
                entry.reported_tokens += reported
                entry.reported_requests += 1
            entry.last_us = at_us
        self.requests += len(served)
        self.total_tokens += total_tokens

    def _free(self) -> dict[int, Entry]:
        """Keep the greater half: all that are listed now."""
        ranked = sorted(self.entries.values(), key=_rank)
        self.floor = max(self.floor, _most(ranked[self._entries_max]))
        self.entries = {entry.key: entry for entry in ranked[: self._entries_max]}
        return self.entries


class SavingsWindow:
    """The sketches of the current and of the last hour.

    Args:
        entries_max: Of each.
        window_us: How long each gathers.

    Attributes:
        since_us: Log time from which on everything counts; 0 before the first request.
    """

    def __init__(self, entries_max: int = ENTRIES_MAX, window_us: int = WINDOW_US) -> None:
        self.since_us = 0
        self._entries_max = entries_max
        self._window_us = window_us
        self._began_us = 0
        self._now = Savings(entries_max)
        self._before = Savings(entries_max)

    def sketch(self, at_us: int) -> Savings:
        """Where what happens at a log time is to be added."""
        if not self._began_us:
            self.since_us = self._began_us = at_us
        elif at_us - self._began_us >= self._window_us:
            fresh = at_us - self._began_us < 2 * self._window_us
            self.since_us = self._began_us if fresh else at_us
            self._before = self._now if fresh else Savings(self._entries_max)
            self._now, self._began_us = Savings(self._entries_max), at_us
        return self._now

    @property
    def requests(self) -> int:
        """All that were counted."""
        return self._now.requests + self._before.requests

    @property
    def total_tokens(self) -> int:
        """All that was saved."""
        return self._now.total_tokens + self._before.total_tokens

    @property
    def floor(self) -> int:
        """What those that are not listed saved at most."""
        return self._now.floor + self._before.floor

    def top(self, count: int) -> list[Entry]:
        """Those that saved most, the greatest first."""
        entries = dict(self._now.entries)
        for key, old in self._before.entries.items():
            new = entries.get(key)
            if new is None:
                entries[key] = msgspec.structs.replace(old, error=old.error + self._now.floor)
            else:
                entries[key] = _sum(new, old)
        for key in self._now.entries.keys() - self._before.entries.keys():
            entry = entries[key]
            entries[key] = msgspec.structs.replace(entry, error=entry.error + self._before.floor)
        return sorted(entries.values(), key=_rank)[:count]


def _most(entry: Entry) -> int:
    """What it saved at most."""
    return entry.saved_tokens + entry.error


def _rank(entry: Entry) -> tuple[int, int]:
    return -_most(entry), entry.key


def _sum(new: Entry, old: Entry) -> Entry:
    """One of two generations."""
    return Entry(
        new.key,
        new.model,
        new.error + old.error,
        new.prompt_tokens + old.prompt_tokens,
        new.predicted_tokens + old.predicted_tokens,
        new.reported_tokens + old.reported_tokens,
        new.reported_requests + old.reported_requests,
        new.silent_tokens + old.silent_tokens,
        new.silent_requests + old.silent_requests,
        new.last_us,
    )
