"""Plays a case on the stage, and checks the answers to it, within some seconds."""

import asyncio
import contextlib
import json
import socket
import struct
from urllib.parse import quote

import httpx
from redis.exceptions import RedisError

from loadtest.fuzz.actions import NUMBERED, Argument, Commands, Pods, Script, Wire
from loadtest.fuzz.bodies import request
from loadtest.fuzz.cases import Case
from loadtest.fuzz.judge import answers_in, judge_answer
from loadtest.fuzz.stage import NAMESPACE, Gateway, Stage

ANSWER_S = 3.0
"""Longest time to read the answers of one connection."""

QUIET_S = 0.4
"""Silence after which no more bytes are expected."""

LEAVES_S = 0.05
"""Wait of a client that leaves for an answer."""

SEEN_S = 3.0
"""Longest wait of a case until the replicas have seen a worker or a pod."""

AT_A_TIME = 16
"""Connections of a wire that is repeated."""

POLL_S = 0.02
WRITE_S = 5.0


class Player:
    """Player of cases on a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def play(self, case: Case) -> list[str]:
        """Play one case; return the errors of the answers."""
        match case.action:
            case Wire() as wire:
                return await self._wire(wire)
            case Script() as script:
                return await self._script(f"c{case.number}", script)
            case Commands() as commands:
                await self._commands(commands)
            case Pods() as pods:
                await self._pods(case.number, pods)
        return []

    async def _wire(self, wire: Wire) -> list[str]:
        gateway, limit = self._stage.gateways[wire.replica], asyncio.Semaphore(AT_A_TIME)
        port = gateway.ports[wire.listener]

        async def one(number: int) -> list[str]:
            pieces = [piece.replace(NUMBERED, b"%08d" % number) for piece in wire.pieces]
            async with limit:
                resets = wire.leaves and wire.repeat == 1
                return judged(await exchanged(port, pieces, leaves=wire.leaves, resets=resets))

        if wire.repeat == 1:
            return await one(0)
        found = await asyncio.gather(*(one(number) for number in range(wire.repeat)))
        return sorted({each for some in found for each in some})

    async def _commands(self, commands: Commands) -> None:
        for command in commands.commands:
            with contextlib.suppress(RedisError):  # a key of another type: that is Redis's own business
                await self._stage.valkey.command(*map(_argument, command))

    async def _pods(self, number: int, pods: Pods) -> None:
        api_server, names = self._stage.api_server, []
        for count, pod in enumerate(pods.pods):
            names.append(_name_of(pod) or f"evil-{number}-{count}")
            api_server.put(names[-1], pod)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_S):
                for gateway in self._stage.gateways:
                    while not _names_any(await _discovered(gateway), names):  # noqa: ASYNC110
                        await asyncio.sleep(POLL_S)
        for name in names:
            api_server.delete(name)

    async def _script(self, name: str, script: Script) -> list[str]:
        """Add a worker that answers so, ask it, and remove it."""
        worker, gateways = self._stage.worker, self._stage.gateways
        worker.scripts[name] = script
        gateway = gateways[0]
        url = f"{worker.url}/{name}"
        with contextlib.suppress(httpx.HTTPError):
            await gateway.admin.post("/workers", json={"url": url})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_S / 2):
                while worker.asked[name, "/health"] < 2 or not worker.asked[name, "/v1/models"]:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        found: list[str] = []
        for number, body in enumerate(script.requests):
            port = gateways[number % 2].ports["data"]
            found += judged(await exchanged(port, [request("/v1/completions", body)]))
        for path in ("/v1/models", "/workers"):
            for each in gateways:
                port = each.ports["admin" if path == "/workers" else "data"]
                found += judged(await exchanged(port, [request(path, b"", method=b"GET")]))
        with contextlib.suppress(httpx.HTTPError):
            await gateway.admin.delete(f"/workers/{quote(url.removeprefix('http://'), safe='/:')}")
        return found


def judged(data: bytes) -> list[str]:
    """Return the errors of the answers on one connection."""
    answers, wrong = answers_in(data)
    found = {judge_answer(answer) for answer in answers} | {wrong}
    return sorted(found - {""})


async def exchanged(port: int, pieces: list[bytes], *, leaves: bool = False, resets: bool = False) -> bytes:
    """Write pieces to a port of this machine, and read until nothing more comes.

    ``leaves`` reads for a moment only; ``resets`` ends with a reset, which may overtake the written bytes.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    received = bytearray()
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(_read(reader, received))
            await _write(writer, pieces)
            if leaves:
                await asyncio.wait((reading,), timeout=0 if resets else LEAVES_S)
                reading.cancel()
    finally:
        if resets:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return bytes(received)


async def _write(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # refused before all was written, and closed
        async with asyncio.timeout(WRITE_S):
            for number, piece in enumerate(pieces):
                if number:
                    await asyncio.sleep(POLL_S / 2)
                writer.write(piece)
                await writer.drain()


async def _read(reader: asyncio.StreamReader, received: bytearray) -> None:
    with contextlib.suppress(OSError):
        async with asyncio.timeout(ANSWER_S):
            while True:
                async with asyncio.timeout(QUIET_S if received else ANSWER_S):
                    data = await reader.read(1 << 16)
                if not data:
                    return
                received += data


async def _discovered(gateway: Gateway) -> str:
    with contextlib.suppress(httpx.HTTPError):
        return (await gateway.admin.get("/discovery")).text
    return ""


def _names_any(text: str, names: list[str]) -> bool:
    return any(name in text for name in names)


def _name_of(pod: bytes) -> str:
    """The name that a pod says, if it says one."""
    try:
        name = json.loads(pod)["metadata"]["name"]
    except (ValueError, TypeError, KeyError):
        return ""
    return name if isinstance(name, str) else ""


def _argument(argument: Argument) -> Argument:
    if isinstance(argument, str) and argument.startswith("key:"):
        return f"cw:{{{NAMESPACE}}}:{argument[4:]}"
    return argument
