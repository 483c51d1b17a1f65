"""The session of a request, and the worker that served it last: a hint for placement (decision 0076).

    header or field of the body ──> name ──hash with the tenant──> key of the request ──> ties, everywhere
                                             └──> last worker ──> `policies.place`
                                                    └──> other replicas, if it is another one (`SessionHomes`)

The key of a request breaks ties by rendezvous hashing. It is the same at all replicas, so they prefer the
same worker for a session without talking. Last workers are remembered here, those that other replicas told,
too: ``sessions_max`` entries, of which the least recently used is dropped, for ``session_ttl_s``. The memory
holds 64-bit hashes and no names, and the tenant is part of each hash, so a session of one tenant is never
another's.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf
from sys import intern

import msgspec

from policies import FleetState
from router.gateway.identity import PromptHasher
from router.gateway.parsing import ParsedRequest
from router.proxy import Header
from router.session_fields import is_name
from router.session_rules import SessionRules

SHOWN = frozenset(("session_id", "metadata.session_id", "metadata.user_id"))
"""Fields whose names logs show. Clients may write anything into the others, or the name of a person."""

Home = tuple[str, float]
"""Id of a worker, and the monotonic second at which it was told; old ones are forgotten."""

NOWHERE: Home = ("", -inf)


class Sessions:
    """The sessions of one process (`router.gateway.gateway.SessionsPort`).

    ``tell`` is given the hash of a session and the id of its worker, empty at its end, for other replicas.
    """

    def __init__(
        self,
        rules: SessionRules,
        fleet: FleetState,
        hasher: PromptHasher,
        tell: Callable[[int, str], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet, self._hasher, self._tell, self._now_s = fleet, hasher, tell, now_s
        self._homes: OrderedDict[int, Home] = OrderedDict()
        self.use(rules)

    def __len__(self) -> int:
        """Number of sessions remembered."""
        return len(self._homes)

    def use(self, rules: SessionRules) -> None:
        """Apply new settings to later requests."""
        self._headers = tuple(name.encode() for name in rules.session_headers)
        self._fields = rules.session_fields
        self._most, self._ttl_s = rules.sessions_max, rules.session_ttl_s
        self._drop()

    def named(self, parsed: ParsedRequest, headers: Sequence[Header], name: str = "") -> ParsedRequest:
        """Return a request with its session's name, ``name`` if it is given, and with the session's key."""
        session, is_shown = self.name_of(parsed, headers, name)
        if not session:
            return msgspec.structs.replace(parsed, session="") if parsed.session else parsed
        key = self._key(parsed.tenant, session)
        shown = session if is_shown else f"key-{key:016x}"
        if not self._most:
            return msgspec.structs.replace(parsed, session=shown)
        return msgspec.structs.replace(parsed, session=shown, key=key)

    def name_of(self, parsed: ParsedRequest, headers: Sequence[Header], name: str = "") -> tuple[str, bool]:
        """Return the name of a request's session, empty without one, and whether logs may show it."""
        named = name or (session_named(headers, self._headers) if headers else "")
        if named:
            return named, True
        for field in self._fields:
            if field == "prompt_cache_key":
                if parsed.session:
                    return parsed.session, False
                continue
            for each, value in parsed.session_hints:
                if each == field:
                    return value, field in SHOWN
        return "", False

    def home_of(self, parsed: ParsedRequest) -> int:
        """Return the slot of the worker that served a request's session last; -1 if none is known."""
        worker_id, told_s = self._homes.get(parsed.key, NOWHERE)
        worker = self._fleet.worker(worker_id) if self._now_s() - told_s < self._ttl_s else None
        return -1 if worker is None else worker.slot

    def placed(self, parsed: ParsedRequest, worker_id: str) -> None:
        """Take note of a worker, or rank, that gets a request of a session.

        Other replicas learn of a new worker at once, and of the same one after half its time to live.
        """
        if not self._most:
            return
        known, told_s = self._homes.get(parsed.key, NOWHERE)
        now_s = self._now_s()
        if known == worker_id and now_s - told_s < self._ttl_s / 2:
            self._homes.move_to_end(parsed.key)
            return
        self._remember(parsed.key, worker_id, now_s)
        self._tell(parsed.key, worker_id)

    def heard(self, session: int, worker_id: str, age_s: float) -> None:
        """Take note of another replica's word, ``age_s`` seconds old: the worker of a session, or its end."""
        if not worker_id:
            self._homes.pop(session, None)
        elif self._most and age_s < self._ttl_s:
            self._remember(session, intern(worker_id), self._now_s() - age_s)

    def finish(self, tenant: str, session: str) -> bool:
        """Forget a session of a tenant, at all replicas; False if it is not known here."""
        key = self._key(tenant, session)
        self._tell(key, "")
        return self._homes.pop(key, None) is not None

    def _key(self, tenant: str, session: str) -> int:
        return self._hasher.session_hash(tenant.encode(), session)

    def _remember(self, session: int, worker_id: str, told_s: float) -> None:
        self._homes[session] = worker_id, told_s
        self._homes.move_to_end(session)
        self._drop()

    def _drop(self) -> None:
        while len(self._homes) > self._most:
            self._homes.popitem(last=False)


def session_named(headers: Sequence[Header], wanted: Sequence[bytes]) -> str:
    """Return the value of the first of the wanted headers that is present; empty without one.

    A value that is empty, longer than a name may be, or no printable ASCII names no session.
    """
    for name in wanted:
        for each, value in headers:
            if each == name and value.isascii() and is_name(text := value.decode()):
                return text
    return ""
