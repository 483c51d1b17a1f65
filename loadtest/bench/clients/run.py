"""One client, run as a child until it has ended, with a look at gateway and engines before and after."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from loadtest.bench.clients.client import Client, Load, ReportUnreadable
from loadtest.bench.clients.comparison import Comparison
from loadtest.bench.clients.engine_view import EngineTokens
from loadtest.bench.clients.gateway_view import GatewayView
from router.child_process import ChildProcess

LOG_LINES = 15
STOP_TIMEOUT_S = 5.0
SETTLE_S = 0.3
"""After the client's end: the gateway counts an answer after it has sent its last byte."""


class ClientFailed(Exception):
    """A client did not do what it was asked to; the message has the end of its log."""


async def run(
    client: Client, program: Path, load: Load, gateway: GatewayView, folder: Path, timeout_s: float
) -> Comparison:
    """Run a client and compare its counts with the gateway's and the engines'.

    Its report and its log go to ``folder``, which exists and is empty.

    Raises:
        ClientFailed: It ended with an error, without a report, or not in time.
        httpx.HTTPError: The gateway or an engine does not answer.
    """
    urls = await asyncio.to_thread(gateway.worker_urls)
    engines = await asyncio.to_thread(EngineTokens.of, urls)
    mark = await asyncio.to_thread(gateway.mark)
    log = folder / f"{client.name}.log"
    status = await _ended(client, client.command(program, load, folder), log, timeout_s)
    await asyncio.sleep(SETTLE_S)
    counted = await asyncio.to_thread(gateway.since, mark)
    engines = await asyncio.to_thread(EngineTokens.of, urls) - engines
    try:
        report = client.read(folder)
    except ReportUnreadable as error:
        raise ClientFailed(f"{client.name} ended with status {status}: {error}\n{_end(log)}") from error
    if status:
        raise ClientFailed(f"{client.name} ended with status {status}\n{_end(log)}")
    return Comparison(client.name, report, counted, engines)


async def _ended(client: Client, command: Sequence[str], log: Path, timeout_s: float) -> int:
    with log.open("wb") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        try:
            process = await ChildProcess.start(
                *command, log=output, environment={**os.environ, **client.variables}
            )
        except OSError as error:
            raise ClientFailed(f"{client.name}: {error}") from error
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait()
        except TimeoutError:
            raise ClientFailed(f"{client.name} took longer than {timeout_s:g} s\n{_end(log)}") from None
        finally:
            await process.end(STOP_TIMEOUT_S)


def _end(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
