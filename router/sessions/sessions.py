"""The session of a request, and the worker that served it last: a hint for placement (decision 0076).

    header or `prompt_cache_key` ──> name ──hash with the tenant──> key of the request ──> ties, everywhere
                                                 └──> last worker, in this process ──> `policies.place`

The key of a request breaks ties by rendezvous hashing. It is the same at all replicas, so they prefer the
same worker for a session without talking. The memory of last workers is this process's own: ``sessions_max``
entries, of which the least recently used is dropped. It holds 64-bit hashes and no names, and the tenant is
part of each hash, so a session of one tenant is never another's.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from policies import FleetState
from radix import NAME_CHARS_MAX
from router.gateway.identity import PromptHasher
from router.gateway.parsing import ParsedRequest
from router.proxy import Header
from router.session_rules import SessionRules


class Sessions:
    """The sessions of one process (`router.gateway.gateway.SessionsPort`)."""

    def __init__(self, rules: SessionRules, fleet: FleetState, hasher: PromptHasher) -> None:
        self._fleet, self._hasher = fleet, hasher
        self._workers: OrderedDict[int, str] = OrderedDict()
        self.use(rules)

    def __len__(self) -> int:
        """Number of sessions remembered."""
        return len(self._workers)

    def use(self, rules: SessionRules) -> None:
        """Apply new settings to later requests."""
        self._headers = tuple(name.encode() for name in rules.session_headers)
        self._most = rules.sessions_max
        self._drop()

    def named(self, parsed: ParsedRequest, headers: Sequence[Header], name: str = "") -> ParsedRequest:
        """Return a request with its session's name, ``name`` if it is given, and with the session's key.

        Logs show the name. A client may write anything into `prompt_cache_key`, so a hash of that is shown.
        """
        named = name or (session_named(headers, self._headers) if headers else "")
        session = named or parsed.session
        if not session:
            return parsed
        key = self._key(parsed.tenant, session)
        shown = named or f"key-{key:016x}"
        if not self._most:
            return msgspec.structs.replace(parsed, session=shown)
        return msgspec.structs.replace(parsed, session=shown, key=key)

    def home_of(self, parsed: ParsedRequest) -> int:
        """Return the slot of the worker that served a request's session last; -1 if none is known."""
        worker_id = self._workers.get(parsed.key)
        worker = None if worker_id is None else self._fleet.worker(worker_id)
        return -1 if worker is None else worker.slot

    def placed(self, parsed: ParsedRequest, worker_id: str) -> None:
        """Take note of a worker, or rank, that gets a request of a session."""
        if self._most:
            self._workers[parsed.key] = worker_id
            self._workers.move_to_end(parsed.key)
            self._drop()

    def finish(self, tenant: str, session: str) -> bool:
        """Forget a session of a tenant; False if it is not known."""
        return self._workers.pop(self._key(tenant, session), None) is not None

    def _key(self, tenant: str, session: str) -> int:
        return self._hasher.session_hash(tenant.encode(), session)

    def _drop(self) -> None:
        while len(self._workers) > self._most:
            self._workers.popitem(last=False)


def session_named(headers: Sequence[Header], wanted: Sequence[bytes]) -> str:
    """Return the value of the first of the wanted headers that is present; empty without one.

    A value that is empty, longer than a name may be, or no printable ASCII names no session.
    """
    for name in wanted:
        for each, value in headers:
            if each == name and 0 < len(value) <= NAME_CHARS_MAX and value.isascii():
                text = value.decode()
                if text.isprintable():
                    return text
    return ""
