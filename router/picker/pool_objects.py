"""The objects of a pool that say how requests are served: InferenceObjectives and InferenceModelRewrites.

They are read every `LOOK_S` (``inference.networking.x-k8s.io`` and ``llm-d.ai``, version v1alpha2, in the
pool's namespace) and count if they refer to the pool. Kinds that the API server does not know are none. While
it cannot be asked, the known objects stay.

Precedence of rewrites (``apix/v1alpha2/inferencemodelrewrite_types.go``): a rule with the model's name before
a rule for all; then the oldest object; then the first rule.
"""

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from router.discovery import VERSIONS, DiscoveryRules, PodPool
from router.discovery.api_server import ApiServer, find_server
from router.discovery.source import ApiFailure, Trouble
from router.log_pace import LogPace
from router.picker.intents import Intents, Targets, targets_of

logger = logging.getLogger(__name__)

LOOK_S = 5.0
UNREADABLE_S = 600.0
"""Time between two log lines on the same object, which is read at every look."""

GROUPS = ("inference.networking.x-k8s.io", "llm-d.ai")

OBJECTS_MAX = 10_000
TARGETS_MAX = 100
WEIGHT_MAX = 1_000_000


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    creation_timestamp: str | None = None


class _PoolRef(msgspec.Struct, frozen=True):
    name: str = ""


class _ObjectiveSpec(msgspec.Struct, frozen=True, rename="camel"):
    priority: int | None = None
    pool_ref: _PoolRef = _PoolRef()


class _Objective(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _ObjectiveSpec = _ObjectiveSpec()


class _Target(msgspec.Struct, frozen=True, rename="camel"):
    model_rewrite: str
    weight: int = 0


class _Model(msgspec.Struct, frozen=True):
    value: str
    type: str = "Exact"


class _Match(msgspec.Struct, frozen=True):
    model: _Model | None = None


class _Rule(msgspec.Struct, frozen=True):
    matches: tuple[_Match, ...] = ()
    targets: tuple[_Target, ...] = ()


class _RewriteSpec(msgspec.Struct, frozen=True, rename="camel"):
    rules: tuple[_Rule, ...] = ()
    pool_ref: _PoolRef = _PoolRef()


class _Rewrite(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _RewriteSpec = _RewriteSpec()


class _Items(msgspec.Struct, frozen=True):
    items: tuple[msgspec.Raw, ...] = ()


_items = msgspec.json.Decoder(_Items)
_objective, _rewrite = msgspec.json.Decoder(_Objective), msgspec.json.Decoder(_Rewrite)


def objectives_of(lists: Iterable[bytes], pool: str, pace: LogPace) -> dict[str, int]:
    """Return the priorities of a pool's objectives by name; raise `ApiFailure` for a list that is none."""
    found: dict[str, int] = {}
    for item in _each(lists):
        try:
            objective = _objective.decode(item)
        except (msgspec.DecodeError, RecursionError) as error:
            _unreadable("InferenceObjective", error, pace)
            continue
        if objective.spec.pool_ref.name == pool:
            found[objective.metadata.name] = objective.spec.priority or 0
    return found


def rewrites_of(
    lists: Iterable[bytes], pool: str, pace: LogPace
) -> tuple[dict[str, Targets], Targets | None]:
    """Return the targets of a pool's rewrites: by model, and of all other models, None for none."""
    found: list[_Rewrite] = []
    for item in _each(lists):
        try:
            rewrite = _rewrite.decode(item)
        except (msgspec.DecodeError, RecursionError) as error:
            _unreadable("InferenceModelRewrite", error, pace)
            continue
        if rewrite.spec.pool_ref.name == pool:
            found.append(rewrite)
    exact: dict[str, Targets] = {}
    otherwise: Targets | None = None
    for rewrite in sorted(
        found, key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name)
    ):
        for rule in rewrite.spec.rules:
            weighted = [
                (target.model_rewrite, min(target.weight, WEIGHT_MAX))
                for target in rule.targets[:TARGETS_MAX]
            ]
            if not weighted:
                continue
            targets = targets_of(weighted)
            for match in rule.matches:
                if match.model is not None and match.model.type == "Exact":
                    exact.setdefault(match.model.value, targets)
            if not rule.matches and otherwise is None:
                otherwise = targets
    return exact, otherwise


class PoolObjects:
    """Follows the objects of one pool."""

    def __init__(self, api: ApiServer, namespace: str, pool: str, intents: Intents) -> None:
        self._api, self._namespace, self._pool, self._intents = api, namespace, pool, intents
        self._failing = False
        self._pace = LogPace(UNREADABLE_S)

    async def run(self) -> None:
        """Follow them until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            await self._api.close()

    async def look(self) -> None:
        """Read them once; on a failure the known ones stay."""
        try:
            objectives = objectives_of(await self._lists("inferenceobjectives"), self._pool, self._pace)
            exact, otherwise = rewrites_of(
                await self._lists("inferencemodelrewrites"), self._pool, self._pace
            )
        except ApiFailure as failure:
            if not self._failing:
                logger.warning(
                    "the objects of the pool cannot be read; the known ones stay",
                    extra={"event": "picker.objects_unreadable", "detail": failure.message},
                )
            self._failing = True
            if failure.trouble is Trouble.UNAUTHORIZED:
                await self._api.renew()
            return
        self._failing = False
        self._intents.objectives = objectives
        self._intents.rewrites, self._intents.otherwise = exact, otherwise

    async def _lists(self, plural: str) -> list[bytes]:
        paths = (f"apis/{group}/{VERSIONS[group]}/namespaces/{self._namespace}/{plural}" for group in GROUPS)
        found = [await self._api.read(path) for path in paths]
        return [data for data in found if data is not None]


def make_pool_objects(rules: DiscoveryRules, pool: PodPool, intents: Intents) -> PoolObjects:
    """Make it for a pool; raise `ApiFailure` if no API server is configured."""
    namespace = pool.namespace or find_server(rules.kubeconfig).namespace.strip()
    return PoolObjects(ApiServer(rules.kubeconfig), namespace, pool.name, intents)


def _each(lists: Iterable[bytes]) -> list[msgspec.Raw]:
    items: list[msgspec.Raw] = []
    for data in lists:
        try:
            items += _items.decode(data).items
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiFailure(Trouble.MALFORMED, f"it is no list of objects: {error}"[:300]) from error
    if len(items) > OBJECTS_MAX:
        raise ApiFailure(Trouble.REFUSED, f"there are more than {OBJECTS_MAX} objects")
    return items


def _unreadable(kind: str, error: Exception, pace: LogPace) -> None:
    detail = str(error)[:300]
    if pace.due(f"{kind} {detail}") is not None:
        logger.warning(
            "an object of the pool cannot be read: it counts as if it were not there",
            extra={"event": "picker.object_unreadable", "kind": kind, "detail": detail},
        )
