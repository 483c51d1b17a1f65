"""``deploy/compose.yaml`` as processes of this machine: their own commands, free ports of 127.0.0.1."""

import asyncio
import re
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml
from fakes.manifests import ROOT

from loadtest.processes import Child, free_port
from router.shared.embedded import server_binary

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]

WAIT_S = 60.0

LISTENING = ("--port=", "--prometheus-port=", "--admin-port=")
OTHER_NAMES = {"gateway": "gateway-1"}
"""Names by which several services are called, and the one that is taken here."""


def interpolated(text: str) -> str:
    """A value as Compose takes it where no variable is set."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    return text.replace("$$", "$")


def command_of(service: str) -> list[str]:
    """The arguments of a service."""
    return [interpolated(argument) for argument in SERVICES[service]["command"]]


def environment_of(service: str) -> dict[str, str]:
    """Its variables."""
    return {name: interpolated(value) for name, value in SERVICES[service].get("environment", {}).items()}


class Composed:
    """Services as processes; an async context manager that ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ports: dict[tuple[str, int], int] = {}
        self._running = AsyncExitStack()
        for name in ("valkey", "gateway-1", "gateway-2", "engines"):
            for port in (6379, 30000, 29000, 29100):
                self._ports[name, port] = free_port()
        first = _neighbours(4)
        for index in range(4):
            self._ports["engines", 30100 + index] = first + index

    async def __aenter__(self) -> "Composed":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()

    def url(self, service: str, port: int) -> str:
        """Address here of a port of a service."""
        return f"http://127.0.0.1:{self._ports[service, port]}"

    async def start(self, service: str, environment: Mapping[str, str] | None = None) -> Child:
        """Start a service with its command and variables, and some variables more."""
        child = Child(service, [], self.folder, program=self._command(service, environment or {}))
        return await self._running.enter_async_context(child)

    async def run(self, service: str) -> str:
        """Run a service that ends by itself; return its output."""
        pipe = asyncio.subprocess.PIPE
        command = self._command(service, {})
        process = await asyncio.create_subprocess_exec(
            *command, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(WAIT_S):
            output, _ = await process.communicate()
        assert process.returncode == 0, output
        return output.decode()

    def _command(self, service: str, environment: Mapping[str, str]) -> list[str]:
        arguments = [self._here(service, argument) for argument in command_of(service)]
        variables = {name: self._here(service, value) for name, value in environment_of(service).items()}
        command = ["env", f"PATH={Path(sys.executable).parent}:/usr/bin:/bin"]
        command += [f"{name}={value}" for name, value in {**variables, **environment}.items()]
        match SERVICES[service].get("entrypoint"):
            case [shell, *flags] if shell == "sh":
                return [*command, shell, *flags, *arguments]
            case ["locust"]:
                return [*command, sys.executable, "-m", "locust", *arguments]
        if arguments[0] == "valkey-server":
            here = ["--bind", "127.0.0.1", "--port", str(self._ports["valkey", 6379])]
            return [*command, str(server_binary()), *arguments[1:], *here]
        return [*command, sys.executable, "-P", "-m", "cacheway", *arguments]

    def _here(self, service: str, text: str) -> str:
        """The same with addresses and paths of this machine."""
        if text.startswith(LISTENING):
            name, _, port = text.partition("=")
            return f"{name}={self._ports[service, int(port)]}"

        def address(found: re.Match[str]) -> str:
            name = OTHER_NAMES.get(found[1], found[1])
            return f"127.0.0.1:{self._ports[name, int(found[2])]}" if name in SERVICES else found[0]

        text = re.sub(r"\b([a-z][a-z0-9-]*):(\d+)\b", address, text)
        return (
            text.replace("host=0.0.0.0", "host=127.0.0.1")
            .replace("/tmp/", f"{self.folder}/")
            .replace("/etc/cacheway/admin/", f"{self.folder}/")
            .replace("/opt/loadtest/", f"{ROOT}/loadtest/")
        )


def _neighbours(number: int) -> int:
    """The first of some free ports in a row."""
    while True:
        first = free_port()
        if all(free_port(first + index) == first + index for index in range(number)):
            return first
