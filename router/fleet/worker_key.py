"""The fleet's key (``fleet.worker_api_key``), shown only to workers that the settings name.

    fleet.worker_urls, prefill, decode, encode   by scheme, host and port
    fleet.worker_hosts                           by the host's name
    fleet.worker_networks                        by the address that is connected to (`Destinations.entrusts`)
    discovery.selector and the like              by a pod that this replica sees, or by the note of a
                                                 selection that this replica makes, too

An administrator, or an encoder that registers itself, may name any other address; such a worker is used
without the key, which a log line and the admin API report. Requests carry it by their worker's pool.
"""

import logging
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from policies import Worker
from router.destinations import Destinations
from router.fleet.address import origin_of
from router.fleet.discovered import note_of

logger = logging.getLogger(__name__)


class WorkerKey:
    """The key (None if workers ask for none), and the workers that it is shown to.

    `scopes` are discovery's (`Selection.scope`); `discovers` returns True if it sees a pod at a URL.
    """

    def __init__(
        self,
        key: str | None,
        destinations: Destinations,
        *,
        urls: Iterable[str] = (),
        scopes: Iterable[str] = (),
        discovers: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._key = key
        self._destinations = destinations
        self._named = frozenset(map(origin_of, urls))
        self._scopes = frozenset(scopes)
        self._discovers = discovers
        self._discovered: dict[str, str] = {}
        """Ids of discovered workers, by origin."""
        self._withheld: set[str] = set()

    def use(self, key: str) -> None:
        """Replace the key by a new one."""
        self._key = key

    def line_for(self, worker: Worker) -> bytes:
        """Return the header line for requests to a worker."""
        note = note_of(worker.labels)
        origin = origin_of(worker.url)
        if note is not None and note.scope in self._scopes:
            self._discovered[origin] = worker.worker_id
        elif self._discovered.get(origin) == worker.worker_id:
            del self._discovered[origin]
        if self._key is None:
            return b""
        if not self._is_trusted(origin):
            self._withhold(worker)
            return b""
        self._withheld.discard(worker.worker_id)
        return b"authorization: Bearer %b\r\n" % self._key.encode()

    def forget(self, worker: Worker) -> None:
        """Forget a worker that is gone."""
        origin = origin_of(worker.url)
        if self._discovered.get(origin) == worker.worker_id:
            del self._discovered[origin]
        self._withheld.discard(worker.worker_id)

    def is_withheld(self, worker_id: str) -> bool:
        """Return True if there is a key that a worker is not shown."""
        return worker_id in self._withheld

    def shown_at(self, url: str) -> str | None:
        """Return the key if it may be shown at a URL, else None."""
        return self._key if self._key is not None and self._is_trusted(origin_of(url)) else None

    def _is_trusted(self, origin: str) -> bool:
        return (
            origin in self._named
            or origin in self._discovered
            or self._discovers(origin)
            or self._destinations.entrusts(urlsplit(origin).hostname or "")
        )

    def _withhold(self, worker: Worker) -> None:
        if worker.worker_id in self._withheld:
            return
        self._withheld.add(worker.worker_id)
        logger.warning(
            "a worker is not shown fleet.worker_api_key: neither the settings nor fleet.worker_networks, "
            "fleet.worker_hosts or discovery's selectors name it",
            extra={"event": "worker.key_withheld", "worker_id": worker.worker_id, "url": worker.url},
        )
