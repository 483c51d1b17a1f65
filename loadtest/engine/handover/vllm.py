"""vLLM's hand-over: KV stays where it was computed until the other engine fetches it.

    NIXL      1. prefill leg, max_tokens=1, ``do_remote_decode``
              2. its answer has ``kv_transfer_params``: where its blocks are
              3. decode leg with these, ``do_remote_prefill``: has room -> shakes hands -> pulls -> decodes
    Mooncake  both legs at once with one ``transfer_id``; the decode leg has the bootstrap address and the
              engine id from ``GET {bootstrap}/query``, asks, and is answered when the prefill is done

A decode engine pulls what its own cache lacks, and keeps it there. It reports as ``cached_tokens`` with NIXL
the prefill engine's, from the parameters (v1/engine/output_processor.py), with Mooncake its own. KV that is
not fetched is dropped 30 s after the last sign of its decode leg with NIXL (a sixth of that apart while it
waits for room), after 480 s with Mooncake (nixl/base_scheduler.py, pull_scheduler.py, mooncake_connector.py).

Failures, as observed on vLLM 0.32 with NIXL:

    no params, or not all of them            the decode engine computes the prompt itself
    unknown engine id, no engine at the port 500; the blocks stay until their lease is over
    wrong port after an earlier hand-shake   no matter, the engine is known by its id
    wrong request id                         the answer is right; the blocks stay until their lease is over
    prefill leg aborted before its end       nothing is kept, no params

Between emulators the side channel, or Mooncake's bootstrap port, is HTTP: ``GET /query``, and ``POST`` to
``/handshake``, ``/heartbeat``, ``/release`` and ``/kv``, which is answered when the KV is there.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import orjson

from loadtest.engine.errors import RequestRefused
from loadtest.engine.faults import LEG_FAULTS, Faults
from loadtest.engine.handover.kept import KeptKv
from loadtest.engine.handover.legs import (
    Counters,
    DecodeLegs,
    Leg,
    Outcome,
    TransferFailed,
    Transfers,
    Worker,
)
from loadtest.engine.handover.peer import PeerLost, PeerRefused, call
from loadtest.engine.handover.settings import HandoverSettings
from loadtest.engine.handover.side_port import SidePort
from loadtest.engine.job import Job
from loadtest.engine.kv_encoding import CacheGroup
from loadtest.engine.served import ServedJob
from loadtest.engine.server import Answer, Request

logger = logging.getLogger(__name__)

_TEXT = b"text/plain; charset=utf-8"
_FAILED = "Internal server error"
_NIXL_FIELDS = ("remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port")
_MOONCAKE_FIELDS = ("remote_engine_id", "remote_bootstrap_addr", "transfer_id")


@dataclass(frozen=True, slots=True)
class Give:
    """A prefill leg. With NIXL its KV is called by its request, with Mooncake by ``transfer_id``."""

    transfer_id: str | None


@dataclass(frozen=True, slots=True)
class Fetch:
    """A decode leg: the engine that has its KV, and its name there.

    Attributes:
        port: Its side channel or bootstrap port.
        cached_tokens: Cached prompt tokens in that engine; None if the leg does not say.
    """

    engine_id: str
    key: str
    host: str
    port: int
    cached_tokens: int | None = None


Plan = Give | Fetch


class KvTransfers:
    """The KV connector of one engine, for prefill and decode legs.

    Each cache group has block ids of its own.
    """

    def __init__(
        self,
        settings: HandoverSettings,
        worker: Worker,
        transfers: Transfers,
        faults: Faults,
        groups: Sequence[CacheGroup],
        block_tokens: int,
    ) -> None:
        self.counters = Counters()
        self.engine_id = settings.engine_id or str(uuid4())
        self._settings = settings
        self._mooncake = settings.protocol == "mooncake"
        self._worker = worker
        self._transfers = transfers
        self._faults = faults
        self._groups = groups
        self._block_tokens = block_tokens
        self._side = SidePort(settings.port, self._serve)
        self._giving: dict[Job, Leg] = {}
        self._legs = DecodeLegs(worker, self.counters)
        lease_s = settings.waiting_s if self._mooncake else settings.lease_s
        self._kept = KeptKv(worker, transfers, self.counters, lease_s, await_prefill=self._mooncake)
        self._known: dict[str, tuple[str, int]] = {}
        self._notices: set[asyncio.Task[None]] = set()
        self._block_ids = 1

    @property
    def port(self) -> int:
        """Port for decode engines."""
        return self._side.port

    async def open(self, host: str) -> None:
        """See `Handover`."""
        if self._settings.listens:
            await self._side.open(host)

    def close(self) -> None:
        """See `Handover`."""
        self._legs.close()
        for notice in self._notices:
            notice.cancel()
        self._kept.close()
        self._side.close()

    def state(self) -> Mapping[str, int]:
        """See `Handover`."""
        return {"giving": len(self._giving), "receiving": self._legs.receiving, **self._kept.state()}

    def plan(self, body: Mapping[str, Any], ids: Sequence[str]) -> Sequence[Plan | None]:
        """See `Handover`."""
        params = body.get("kv_transfer_params")
        if params is None:
            return [None] * len(ids)
        if not isinstance(params, dict):
            raise RequestRefused("kv_transfer_params must be an object", param="kv_transfer_params")
        return [self._plan(params)] * len(ids)

    def _plan(self, params: Mapping[str, Any]) -> Plan | None:
        part = self._settings.part
        if params.get("do_remote_decode"):
            transfer_id = params.get("transfer_id")
            if self._mooncake and part == "decode":
                raise RequestRefused(_FAILED, status=500)
            if self._mooncake and transfer_id is None:
                logger.warning("no transfer_id", extra={"event": "handover.invalid"})
                return None
            return Give(None if transfer_id is None else str(transfer_id))
        if not params.get("do_remote_prefill"):
            return None
        if self._mooncake and part == "prefill":
            raise RequestRefused(_FAILED, status=500)
        if not all(params.get(name) for name in (_MOONCAKE_FIELDS if self._mooncake else _NIXL_FIELDS)):
            # The engine then computes the prompt itself, and says so in its log only.
            logger.warning("kv_transfer_params are incomplete", extra={"event": "handover.invalid"})
            return None
        engine_id = str(params["remote_engine_id"])
        if not self._mooncake:
            host, port = str(params["remote_host"]), int(params["remote_port"])
            cached = params.get("remote_prefill_cached_tokens")
            cached_tokens = cached if isinstance(cached, int) else None
            return Fetch(engine_id, str(params["remote_request_id"]), host, port, cached_tokens)
        address = str(params["remote_bootstrap_addr"])
        url = urlsplit(address if "//" in address else f"//{address}")
        return Fetch(engine_id, str(params["transfer_id"]), url.hostname or "", url.port or 80)

    def take(self, plan: Plan, job: ServedJob, outcome: Outcome) -> None:
        """See `Handover`."""
        if isinstance(plan, Fetch):
            self._legs.take(job, outcome, lambda leg: self._fetch(leg, job, plan))
            return
        if self._faults.take(LEG_FAULTS) is not None:
            self._worker.submit(job)
            return
        # A router that forgets max_tokens=1 gets the whole answer, and its blocks unlocked.
        if job.output_tokens == 1:
            job.role = "prefill"
        key = plan.transfer_id if self._mooncake and plan.transfer_id is not None else job.id
        leg = Leg(job, outcome, lambda leg, reason: self._prefilled(leg, job, key, reason))
        self._giving[job] = leg
        leg.submitted = True
        self._worker.submit(job)

    def abort(self, job: Job) -> bool:
        """See `Handover`."""
        if job in self._giving:
            self._worker.abort(job)
            return True
        return self._legs.abort(job)

    def abort_id(self, id_prefix: str) -> None:
        """See `Handover`."""
        self._legs.abort_id(id_prefix)

    def _prefilled(self, leg: Leg, job: ServedJob, key: str, reason: str) -> None:
        """A prefill leg is over: keep its KV, unless it was aborted."""
        del self._giving[job]
        if reason in ("stop", "length", "tool_calls"):
            self._kept.keep(key, job)
            if not self._mooncake:
                job.transfer_params = self._params(job)
        leg.outcome.finished(job, reason)

    def _params(self, job: ServedJob) -> dict[str, Any]:
        """Parameters for the decode leg, with the fields that vLLM 0.32 has."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [self._new_ids(job.prompt_tokens, group) for group in self._groups],
            "remote_engine_id": self.engine_id,
            "remote_request_id": job.id,
            "remote_host": self._side.host,
            "remote_port": self._side.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": job.prompt_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": job.cached_tokens,
        }

    def _new_ids(self, tokens: int, group: CacheGroup) -> list[int]:
        """Arbitrary ids, as many as the group sends: all blocks, a window's, or one state."""
        blocks = -(-tokens // self._block_tokens)
        if group.window_tokens is not None:
            blocks = min(blocks, -(-group.window_tokens // self._block_tokens) + 1)
        elif group.name == "linear":
            blocks = 1
        first = self._block_ids
        self._block_ids += blocks
        return list(range(first, first + blocks))

    def _serve(self, request: Request, answer: Answer) -> None:
        fields = orjson.loads(request.body) if request.body else {}
        match request.method, request.path:
            case "GET", "/query" if self._mooncake:
                address = f"{self._side.host}:{self._side.port}"
                entry = {"engine_id": self.engine_id, "worker_addr": {"0": {"0": address}}}
                answer.send(200, orjson.dumps({"0": entry}))
            case "POST", "/handshake":
                answer.send(200, orjson.dumps({"engine_id": self.engine_id}))
            case "POST", "/heartbeat":
                self._kept.renew(fields["key"])
                answer.send(200, b"{}")
            case "POST", "/release":
                self._kept.let_go(fields["key"])
                answer.send(200, b"{}")
            case "POST", "/kv":
                self._kept.ask(fields["key"], fields["tokens"], fields["kept_tokens"], answer)
            case _:
                answer.send(404, b"Not Found", _TEXT)

    async def _fetch(self, leg: Leg, job: ServedJob, plan: Fetch) -> None:
        if self._mooncake:
            await self._legs.room(leg)
            host, port = await self._look_up(plan)
        else:
            await self._room_kept_alive(leg, plan)
            host, port = await self._shake_hands(plan)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        tokens, kept_tokens = job.prompt_tokens, job.cached_tokens
        fields = {"key": plan.key, "tokens": tokens, "kept_tokens": kept_tokens}
        try:
            async with asyncio.timeout(self._settings.waiting_s):
                await call(host, port, "/kv", fields)
        except (PeerLost, PeerRefused, TimeoutError) as error:
            raise TransferFailed(_FAILED) from error
        n_bytes = self._transfers.kv_bytes(tokens) - self._transfers.kv_bytes(kept_tokens)
        self.counters.received(tokens - kept_tokens, n_bytes, loop.time() - began_s)
        if plan.cached_tokens is not None:
            job.cached_tokens = plan.cached_tokens

    async def _room_kept_alive(self, leg: Leg, plan: Fetch) -> None:
        """Wait for room; renew the lease meanwhile, or end it if the leg is aborted."""
        try:
            async with asyncio.TaskGroup() as group:
                beats = group.create_task(self._beat(plan), name="handover.heartbeat")
                await self._legs.room(leg)
                beats.cancel()
        except asyncio.CancelledError:
            notice = asyncio.get_running_loop().create_task(
                self._tell(plan, "/release"), name="handover.release"
            )
            self._notices.add(notice)
            notice.add_done_callback(self._notices.discard)
            raise

    async def _beat(self, plan: Fetch) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 6)
            await self._tell(plan, "/heartbeat")

    async def _tell(self, plan: Fetch, path: str) -> None:
        host, port = self._known.get(plan.engine_id, (plan.host, plan.port))
        with suppress(PeerLost, PeerRefused):
            await call(host, port, path, {"key": plan.key})

    async def _shake_hands(self, plan: Fetch) -> tuple[str, int]:
        """Address of an engine: once it is known by its id, the address in the request does not matter."""
        address = self._known.get(plan.engine_id)
        if address is None:
            try:
                answer = await call(plan.host, plan.port, "/handshake", {})
            except (PeerLost, PeerRefused) as error:
                raise TransferFailed(_FAILED) from error
            if answer["engine_id"] != plan.engine_id:
                raise TransferFailed(_FAILED)
            address = self._known[plan.engine_id] = plan.host, plan.port
        return address

    async def _look_up(self, plan: Fetch) -> tuple[str, int]:
        """Ask Mooncake's bootstrap server for the engine's worker."""
        try:
            engines = await call(plan.host, plan.port, "/query")
        except (PeerLost, PeerRefused) as error:
            raise TransferFailed(_FAILED) from error
        for entry in engines.values():
            if entry["engine_id"] == plan.engine_id:
                host, _, port = entry["worker_addr"]["0"]["0"].rpartition(":")
                return host, int(port)
        raise TransferFailed(_FAILED)
