"""Publishes the operations that make one pod's workers match the pod; see `router.discovery`.

Nothing here awaits, so the fold does not change between look and operation.

    no worker at the address           added, if the pod is ready
    one without a note                 left alone: an operator added it
    noted for this pod                 the pod's changes are applied; drained, or no longer
    noted for another pod              taken over if this one is ready, with an empty cache; else removed, if
                                       the other is gone from our own selection
    noted for a later state of a pod   left alone: another replica knows more

The worker of a deleted pod is leaving: it is removed when it has drained (`policies.fleet.departures`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from policies import Forget, OpRefused, Worker, WorkerGone, WorkerPut
from policies.disaggregation import TURNING_LABEL
from radix import TOKENS_MAX, parsed_whole
from router.discovery.pods import CAPACITY, ROLE, PodRules, PodWorker, Refusal, Refused, read_pod
from router.discovery.sighting import Sighting
from router.fleet import Core, worker_id_of
from router.fleet.discovered import DISCOVERED_LABEL, NOTE_LABEL, Note, note_of, note_text

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Seconds after an operation when its pod is settled again."""

NOT_READY = Refusal.NOT_READY.value
DELETING = Refusal.DELETING.value

_WRONG = frozenset(
    (
        Refusal.ADDRESS_REFUSED,
        Refusal.NO_PORT,
        Refusal.BAD_LABEL,
        Refusal.ROLE_CONFLICT,
        Refusal.SAME_ADDRESS,
        Refusal.UNREADABLE,
    )
)
"""Refusals that an operator must mend."""


class Settling:
    """Operations for pods; `added` counts new workers since the start.

    `mark` has a pod settled soon, `later` at a time in monotonic seconds.
    """

    def __init__(
        self,
        sightings: Mapping[str, Sighting],
        scopes: frozenset[str],
        rules: PodRules,
        core: Core,
        *,
        mark: Callable[[str], None],
        later: Callable[[str, float], None],
        clock: Callable[[], float],
    ) -> None:
        self.added = 0
        self._sightings = sightings
        self._scopes = scopes
        self._rules = rules
        self._fleet = core.fleet
        self._log = core.log
        self._mark = mark
        self._later = later
        self._clock = clock
        self._claimants: dict[str, set[str]] = {}
        """Pods that claim a worker at a URL."""

    def sees(self, url: str) -> bool:
        """Return True if a selected pod claims a worker at a URL."""
        return any(self._sightings[uid].selections for uid in self._claimants.get(url, ()))

    def settle(self, sighting: Sighting) -> None:
        """Settle a pod; an error refuses this pod only."""
        pod, before = sighting.pod, sighting.refused
        try:
            self._settle(sighting)
        except OpRefused as error:
            sighting.refused = Refused(Refusal.UNREADABLE, f"the shared log cannot hold its values: {error}")
        except Exception as error:
            sighting.refused = Refused(Refusal.UNREADABLE, f"{type(error).__name__}: {error}")
            logger.exception(
                "a pod could not be taken in", extra={"event": "discovery.crashed", "pod": pod.name}
            )
        refused = sighting.refused
        if refused is not None and refused != before and refused.reason in _WRONG:
            logger.warning(
                "a pod cannot be a worker as it is",
                extra={
                    "event": "discovery.refused",
                    "pod": pod.name,
                    "reason": refused.reason.value,
                    "detail": refused.detail,
                },
            )

    def _settle(self, sighting: Sighting) -> None:
        pod = sighting.pod
        read = read_pod(pod, [selection.role for selection in sighting.selections], self._rules)
        if isinstance(read, Refused):
            sighting.refused = read
            self._unclaim(sighting, sighting.claims.keys())
            if pod.ended:
                self.withdraw(sighting, sighting.urls, "its pod has ended")
            for url in sorted(sighting.urls):
                self._heed(sighting, url)
        else:
            sighting.refused = sighting.not_now()
            claims = {worker.url: worker for worker in read}
            self.withdraw(sighting, sighting.urls - claims.keys(), "its pod has no such port any more")
            sighting.claims = claims
            sighting.urls.update(claims)
            for url in claims:
                self._claimants.setdefault(url, set()).add(pod.uid)
                self._settle_url(url)

    def withdraw(self, sighting: Sighting, urls: Iterable[str], why: str) -> None:
        """Remove the workers of a pod at some URLs."""
        urls = sorted(urls)
        self._unclaim(sighting, urls)
        for url in urls:
            sighting.urls.discard(url)
            worker, note = self._noted(url)
            ours = note is not None and note.uid == sighting.pod.uid and note.scope in self._scopes
            if worker is not None and ours:
                self.remove(worker, why)

    def remove(self, worker: Worker, why: str) -> None:
        """Remove a worker for all replicas; requests in flight there finish."""
        self._log.publish(WorkerGone(worker.worker_id, self._at_us(worker), self._log.replica))
        logger.info(
            "a worker is removed",
            extra={
                "event": "discovery.removed",
                "pod": worker.labels.get(DISCOVERED_LABEL, ""),
                "worker_id": worker.worker_id,
                "reason": why,
            },
        )

    def _unclaim(self, sighting: Sighting, urls: Iterable[str]) -> None:
        for url in list(urls):
            sighting.claims.pop(url, None)
            claimants = self._claimants.get(url, set())
            claimants.discard(sighting.pod.uid)
            if not claimants:
                self._claimants.pop(url, None)
            for uid in claimants:
                self._mark(uid)

    def _noted(self, url: str) -> tuple[Worker | None, Note | None]:
        worker = self._fleet.worker(worker_id_of(url))
        return worker, None if worker is None else note_of(worker.labels)

    def _settle_url(self, url: str) -> None:
        """Settle the worker at a URL by the pod that owns the address."""
        worker, note = self._noted(url)
        owner = "" if note is None else note.uid

        def rank(uid: str) -> tuple[bool, bool, str, str]:
            claimant = self._sightings[uid]
            return claimant.serves, uid == owner, claimant.pod.metadata.creation_timestamp or "", uid

        claimants = {uid for uid in self._claimants[url] if self._sightings[uid].selections}
        uid = max(claimants, key=rank)
        sighting = self._sightings[uid]
        for other in claimants - {uid}:
            self._sightings[other].refused = Refused(
                Refusal.SAME_ADDRESS, f"{url} is {sighting.pod.name}'s, which serves, or is newer"
            )
        claim, pod = sighting.claims[url], sighting.pod
        if worker is not None and note is None:
            sighting.refused = Refused(Refusal.BY_HAND, f"an operator added a worker at {url}")
        elif worker is not None and note is not None and note.uid == uid:
            self._follow(sighting, worker, note, claim)
        elif note is not None and note.version > pod.version:
            return
        elif sighting.serves:
            self._add(sighting, worker, claim)
        elif worker is not None and note is not None and self._is_past(note):
            self.remove(worker, "another pod has its address")

    def _is_past(self, note: Note) -> bool:
        """True if a worker's pod was of our selections and is gone."""
        return note.scope in self._scopes and note.uid not in self._sightings

    def _add(self, sighting: Sighting, former: Worker | None, claim: PodWorker) -> None:
        worker_id, pod, declared = worker_id_of(claim.url), sighting.pod, claim.declared
        labels = {**_labels(declared), DISCOVERED_LABEL: f"kubernetes:{pod.name}"}
        note = Note(pod.uid, pod.version, sighting.scope, said=dict(declared))
        at_us = self._at_us(former)
        capacity_tokens = parsed_whole(declared.get(CAPACITY, ""), TOKENS_MAX) or 0
        if former is not None:
            self._log.publish(Forget(worker_id, at_us))
        self._log.publish(
            WorkerPut(
                worker_id,
                at_us,
                self._log.replica,
                claim.url,
                declared[ROLE],
                False,  # noqa: FBT003 - it takes requests
                capacity_tokens,
                {**labels, NOTE_LABEL: note_text(note)},
            )
        )
        self.added += 1
        self._later(pod.uid, self._clock() + AGAIN_S)
        logger.info(
            "a pod is a worker now",
            extra={
                "event": "discovery.added",
                "pod": pod.name,
                "worker_id": worker_id,
                "role": declared[ROLE],
                "labels": _labels(declared),
            },
        )

    def _heed(self, sighting: Sighting, url: str) -> None:
        """Apply only the readiness of a refused pod."""
        worker, note = self._noted(url)
        if worker is not None and note is not None and note.uid == sighting.pod.uid:
            self._follow(sighting, worker, note, PodWorker(url, note.said))

    def _follow(self, sighting: Sighting, worker: Worker, note: Note, claim: PodWorker) -> None:
        pod = sighting.pod
        if pod.version < note.version:
            return
        drained, draining = self._drain_of(sighting, worker, note)
        if (pod.version, sighting.scope) <= (note.version, note.scope):
            # Applied already; later changes are the operators'. Only the end of a drain may have had to wait.
            if not (note.drained == NOT_READY and not drained):
                return
            claim = PodWorker(worker.url, note.said)
        new, old = claim.declared, note.said
        labels = _merged(worker.labels, _labels(old), _labels(new))
        role = worker.role if new.get(ROLE) == old.get(ROLE) else new[ROLE]
        capacity_tokens = worker.capacity_tokens
        if new.get(CAPACITY) != old.get(CAPACITY):
            capacity_tokens = parsed_whole(new.get(CAPACITY, ""), TOKENS_MAX) or 0
        leaving = draining and (worker.leaving or pod.deleting)
        before = (worker.labels, worker.role, worker.capacity_tokens, worker.draining, note.drained, old)
        if before == (labels, role, capacity_tokens, draining, drained, new) and leaving == worker.leaving:
            return
        note = msgspec.structs.replace(
            note, version=pod.version, scope=sighting.scope, drained=drained, said=dict(new)
        )
        at_us = self._at_us(worker)
        fields: dict[str, Any] = {}
        if role != worker.role:
            fields["role"] = role
        if capacity_tokens != worker.capacity_tokens:
            fields["capacity_tokens"] = capacity_tokens
        if (draining, leaving) != (worker.draining, worker.leaving):
            drain_us = (worker.drain_us or at_us) if draining else 0
            fields |= {"draining": draining, "drain_us": drain_us, "leaving": leaving}
        labels[NOTE_LABEL] = note_text(note)
        self._log.publish(worker.changed(at_us, self._log.replica, labels, **fields))
        # A replica of an older version may have replaced the entry at the same moment.
        self._later(pod.uid, self._clock() + AGAIN_S)
        logger.info(
            "a worker follows its pod",
            extra={
                "event": "discovery.changed",
                "pod": pod.name,
                "worker_id": worker.worker_id,
                "draining": draining,
                "drained": drained or None,
                "role": role,
                "labels": _labels(new),
            },
        )

    def _drain_of(self, sighting: Sighting, worker: Worker, note: Note) -> tuple[str, bool]:
        """Reason of discovery's drain, and True if the worker drains at all."""
        pod = sighting.pod
        reason = DELETING if pod.deleting else "" if pod.ready else NOT_READY
        if reason:
            # An operator's drain stays the operator's.
            return (reason if note.drained or not worker.draining else ""), True
        if not note.drained:
            return "", worker.draining
        due_s = sighting.held_until_s()
        if self._clock() < due_s:
            self._later(pod.uid, due_s)
            return note.drained, True
        return "", TURNING_LABEL in worker.labels

    def _at_us(self, worker: Worker | None) -> int:
        """Log time of an operation; until the log was read, the least that counts."""
        last_us = 0 if worker is None else worker.version[0]
        return max(self._log.now_us(), last_us + 1) if self._log.status().ready else last_us + 1


def _labels(declared: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in declared.items() if name not in (ROLE, CAPACITY)}


def _merged(current: Mapping[str, str], old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Apply a pod's change of its labels from ``old`` to ``new``; others' labels stay."""
    labels = dict(current)
    for name in old.keys() | new.keys():
        if name in new and new[name] != old.get(name):
            labels[name] = new[name]
        elif name not in new and labels.get(name) == old[name]:
            del labels[name]
    return labels
