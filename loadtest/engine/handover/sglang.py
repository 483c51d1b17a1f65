"""SGLang's hand-over: the legs of a request come to both engines at once and meet in a room.

    prefill  leg ---- waits for its room ----> prefill --chunk by chunk--> sent -> answers with one token
    decode   leg -> finds the prefill engine -> has room -> asks for the KV of its room -> decodes

Decode legs come to the prefill engine's *bootstrap server* (disaggregation/common/conn.py). A prefill leg
begins to compute when its decode leg has room, and sends the KV of a chunk while it computes the next; the
decode engine keeps no prefixes of its own, so all of it is sent, cached or not. The decode leg repeats the
prefill engine's ``cached_tokens``.

Failures, as in the engines (disaggregation/prefill.py, decode.py, environ.py):

    neither leg says a room                  400
    the decode leg does not come             the prefill leg fails with 500 after ``bootstrap_s``
    the prefill leg does not come            the decode leg hangs, and fails with 500 after ``waiting_s``
    the prefill leg is aborted               the decode leg hangs as if it had never come
    the decode leg is aborted or fails       the prefill leg is told, and fails with 500
    the KV cannot be sent                    the decode leg is told, and both fail with 500
    no bootstrap server where one should be  the decode leg fails with 500 after ``attempts`` seconds
    the prefill engine dies                  the decode leg fails with 500 after two heartbeats
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import orjson
from xxhash import xxh3_64_intdigest

from loadtest.engine.handover.carriers import Shipment
from loadtest.engine.handover.legs import (
    Counters,
    DecodeLegs,
    Leg,
    NotFound,
    Outcome,
    TransferFailed,
    Transfers,
    Worker,
)
from loadtest.engine.handover.meeting import Meeting, meetings
from loadtest.engine.handover.peer import PeerLost, PeerRefused, call
from loadtest.engine.handover.settings import HandoverSettings
from loadtest.engine.handover.side_port import HeldCall, SidePort
from loadtest.engine.job import Job, State
from loadtest.engine.served import ServedJob
from loadtest.engine.server import Answer, Request

_TEXT = b"text/plain; charset=utf-8"
_NOWHERE = {
    name: ["-1"] for name in ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
}


@dataclass(slots=True)
class _Room:
    """Room: the prefill leg, the decode leg's pending answer, and the KV under way."""

    leg: Leg | None = None
    decode: HeldCall | None = None
    timer: asyncio.TimerHandle | None = None
    shipment: Shipment | None = None

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.shipment is not None:
            self.shipment.cancel()


class PrefillRooms:
    """Prefill legs of one engine, and its bootstrap server, which also reports ranks and block size."""

    def __init__(
        self, settings: HandoverSettings, worker: Worker, transfers: Transfers, ranks: int, block_tokens: int
    ) -> None:
        self.counters = Counters()
        self._side = SidePort(settings.port, self._serve)
        self._settings = settings
        self._worker = worker
        self._transfers = transfers
        self._ranks = ranks
        self._block_tokens = block_tokens
        self._rooms: dict[int, _Room] = {}
        self._room_of: dict[Job, int] = {}

    @property
    def port(self) -> int:
        """Port of the bootstrap server."""
        return self._side.port

    async def open(self, host: str) -> None:
        """See `Handover`."""
        await self._side.open(host)

    def close(self) -> None:
        """See `Handover`."""
        for room in self._rooms.values():
            room.stop()
        self._rooms.clear()
        self._room_of.clear()
        self._side.close()

    def state(self) -> Mapping[str, int]:
        """See `Handover`."""
        return {"rooms": len(self._rooms)}

    def plan(self, body: Mapping[str, Any], ids: Sequence[str]) -> Sequence[Meeting]:
        """See `Handover`."""
        return meetings(body, ids)

    def take(self, plan: Meeting, job: ServedJob, outcome: Outcome) -> None:
        """See `Handover`."""
        number = plan.room
        room = self._rooms.setdefault(number, _Room())
        if room.leg is not None:
            outcome.failed(job, 500, f"bootstrap_room={number} is in use")
            return
        job.role = "prefill"
        job.output_tokens = 1
        job.final_blocks, job.final_tokens = job.blocks, job.prompt_tokens
        room.leg = Leg(job, outcome, self._ended)
        self._room_of[job] = number
        if room.decode is not None:
            self._begin(room, room.leg)
            return
        wait_s = self._settings.bootstrap_s
        reason = f"Request {number} timed out after {wait_s:.1f}s in KVPoll.Bootstrapping"
        loop = asyncio.get_running_loop()
        room.timer = loop.call_later(wait_s, self._fail, number, "bootstrap", reason)

    def abort(self, job: Job) -> bool:
        """See `Handover`."""
        number = self._room_of.get(job)
        if number is None:
            return False
        leg = self._rooms[number].leg
        assert leg is not None
        if leg.submitted and job.state != State.HELD:
            self._worker.abort(job)
            return True
        self._forget(number)
        if leg.submitted:
            self._worker.release(job)
        leg.outcome.finished(job, "abort")
        return True

    def abort_id(self, id_prefix: str) -> None:
        """See `Handover`."""
        for job, number in list(self._room_of.items()):
            leg = self._rooms[number].leg
            if leg is not None and not leg.submitted and job.id.startswith(id_prefix):
                self.abort(job)

    def _decode_left(self, number: int, decode: HeldCall) -> None:
        """A decode leg was aborted, or its engine died, before it had its KV."""
        room = self._rooms.get(number)
        if room is None or room.decode is not decode:
            return
        if room.leg is None:
            del self._rooms[number]
        else:
            self._fail(number, "transfer", "Aborted by AbortReq.")

    def _serve(self, request: Request, answer: Answer) -> None:
        """The bootstrap server's API, and ``POST /kv`` for the engines' own messages beside it."""
        match request.method, request.path:
            case "GET", "/health":
                answer.send(200, b"OK", _TEXT)
            case "GET", "/route":
                self._route(parse_qs(request.query), answer)
            case "POST", "/kv":
                self._ask(int(orjson.loads(request.body)["room"]), answer)
            case _:
                answer.send(404, b"404: Not Found", _TEXT)

    def _route(self, query: Mapping[str, Sequence[str]], answer: Answer) -> None:
        if any(name not in query for name in _NOWHERE):
            answer.send(400, b"Missing inputs for bootstrap server.", _TEXT)
        elif query == _NOWHERE:
            topology = {
                "attn_tp_size": 1,
                "attn_cp_size": 1,
                "dp_size": self._ranks,
                "pp_size": 1,
                "page_size": self._block_tokens,
                "kv_cache_dtype": "auto",
                "follow_bootstrap_room": True,
            }
            answer.send(200, orjson.dumps(topology))
        else:
            answer.send(200, orjson.dumps({"rank_ip": self._side.host, "rank_port": self.port}))

    def _ask(self, number: int, answer: Answer) -> None:
        room = self._rooms.setdefault(number, _Room())
        if room.decode is not None:
            answer.send(400, b"somebody waits for this room", _TEXT)
            return
        room.decode = HeldCall(answer, lambda decode: self._decode_left(number, decode))
        if room.leg is not None:
            self._begin(room, room.leg)

    def _begin(self, room: _Room, leg: Leg) -> None:
        """Both are there: prefill, and send KV as it is computed."""
        if room.timer is not None:
            room.timer.cancel()
        leg.submitted = True
        leg.job.admitted = self._admitted
        self._worker.submit(leg.job)

    def _admitted(self, job: Job) -> None:
        number = self._room_of[job]

        def ended(problem: str | None) -> None:
            if problem is None:
                self._sent(number)
            else:
                self._fail(number, "transfer", f"Failed to send kv chunk: {problem}")

        self._rooms[number].shipment = self._transfers.along(job.prompt_tokens, job.cached_tokens, ended)

    def _ended(self, leg: Leg, reason: str) -> None:
        """The scheduler is done with a leg: its KV is on its way, or it was aborted."""
        job = leg.job
        number = self._room_of.get(job)
        if number is None:
            return
        if job.state != State.HELD:
            self._forget(number)
            leg.outcome.finished(job, reason)
            return
        shipment = self._rooms[number].shipment
        assert shipment is not None
        shipment.computed(job.first_s - job.started_s)

    def _sent(self, number: int) -> None:
        room = self._rooms[number]
        leg, decode = room.leg, room.decode
        assert leg is not None
        assert decode is not None
        self._forget(number)
        self._worker.release(leg.job)
        decode.answer.send(200, orjson.dumps({"cached_tokens": leg.job.cached_tokens}))
        leg.outcome.finished(leg.job, "length")

    def _fail(self, number: int, what: str, reason: str) -> None:
        room = self._rooms[number]
        leg = room.leg
        assert leg is not None
        job = leg.job
        if what == "bootstrap":
            self.counters.unmet += 1
        else:
            self.counters.failed += 1
        self._forget(number)
        if job.state == State.HELD:
            self._worker.release(job)
        elif leg.submitted:
            self._worker.abort(job)
        message = (
            f"Prefill {what} failed for request rank={job.rank} req.rid='{job.id}' "
            f"req.bootstrap_room={number} with exception "
            f"KVTransferError(bootstrap_room={number}): {reason}"
        )
        leg.outcome.failed(job, 500, message)
        if room.shipment is not None and room.decode is not None:
            # The sender of KV tells its receiver of a failure (disaggregation/mooncake/conn.py).
            room.decode.answer.send(200, orjson.dumps({"failed": reason}))

    def _forget(self, number: int) -> None:
        """The room is over. A decode leg that still waits in it is left waiting, as the engine does."""
        room = self._rooms.pop(number)
        room.stop()
        if room.leg is not None:
            del self._room_of[room.leg.job]


class DecodeRooms:
    """Decode legs of one engine."""

    def __init__(self, settings: HandoverSettings, worker: Worker, transfers: Transfers) -> None:
        self.counters = Counters()
        self.port = settings.port
        self._settings = settings
        self._transfers = transfers
        self._legs = DecodeLegs(worker, self.counters)

    async def open(self, host: str) -> None:
        """See `Handover`; never called here."""

    def close(self) -> None:
        """See `Handover`."""
        self._legs.close()

    def state(self) -> Mapping[str, int]:
        """See `Handover`."""
        return {"receiving": self._legs.receiving}

    def plan(self, body: Mapping[str, Any], ids: Sequence[str]) -> Sequence[Meeting]:
        """See `Handover`."""
        return meetings(body, ids)

    def take(self, plan: Meeting, job: ServedJob, outcome: Outcome) -> None:
        """See `Handover`."""
        # No prefixes are shared: the blocks of each room are others'.
        mask = np.uint64(xxh3_64_intdigest(b"%d" % plan.room))
        job.blocks = (np.frombuffer(job.blocks, "<u8") ^ mask).tobytes()
        job.final_blocks = (np.frombuffer(job.final_blocks, "<u8") ^ mask).tobytes()
        self._legs.take(job, outcome, lambda leg: self._fetch(leg, job, plan))

    def abort(self, job: Job) -> bool:
        """See `Handover`."""
        return self._legs.abort(job)

    def abort_id(self, id_prefix: str) -> None:
        """See `Handover`."""
        self._legs.abort_id(id_prefix)

    async def _fetch(self, leg: Leg, job: ServedJob, meeting: Meeting) -> None:
        await self._find(leg, meeting)
        await self._legs.room(leg)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        wait_s = self._settings.waiting_s
        try:
            async with asyncio.timeout(wait_s):
                answer = await self._receive(leg, meeting)
        except TimeoutError as error:
            reason = f"Request {meeting.room} timed out after {wait_s:.1f}s in KVPoll.WaitingForInput"
            raise _failure(leg, "transfer", meeting, reason) from error
        if "failed" in answer:
            raise _failure(leg, "transfer", meeting, answer["failed"])
        tokens = job.prompt_tokens
        self.counters.received(tokens, self._transfers.kv_bytes(tokens), loop.time() - began_s)
        job.cached_tokens = int(answer["cached_tokens"])

    async def _find(self, leg: Leg, meeting: Meeting) -> None:
        """Reach the bootstrap server, which may still be starting."""
        query = "&".join(f"{name}=-1" for name in _NOWHERE)
        for attempt in range(self._settings.attempts):
            try:
                await call(meeting.host, meeting.port, f"/route?{query}")
            except (PeerLost, PeerRefused):
                if attempt + 1 < self._settings.attempts:
                    await asyncio.sleep(1)
            else:
                return
        address = f"{meeting.host}:{meeting.port}"
        raise NotFound(
            f"Could not fetch prefill parallel info from {address} after {self._settings.attempts} attempts"
        )

    async def _receive(self, leg: Leg, meeting: Meeting) -> Any:
        try:
            return await call(meeting.host, meeting.port, "/kv", {"room": meeting.room})
        except PeerLost as error:
            await asyncio.sleep(2 * self._settings.heartbeat_s)
            reason = (
                f"Losing connection with prefill instance (bootstrap_addr: {meeting.host}:{meeting.port})"
            )
            raise _failure(leg, "transfer", meeting, reason) from error
        except PeerRefused as error:
            raise _failure(leg, "handshake", meeting, str(error)) from error


def _failure(leg: Leg, what: str, meeting: Meeting, reason: str) -> TransferFailed:
    return TransferFailed(
        f"Decode {what} failed for request rank={leg.job.rank} decode_req.req.rid='{leg.job.id}' "
        f"decode_req.req.bootstrap_room={meeting.room} with exception "
        f"KVTransferError(bootstrap_room={meeting.room}): {reason}"
    )
