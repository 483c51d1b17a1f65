"""A real vLLM on the loopback interface, as a child process that ends with its owner.

    start ---> loading, 40 to 120 s ---> /health answers ---> SIGTERM to the server, SIGKILL to what is left
                `-- ended, or too late: EngineFailed with the end of its log, and what to do

An engine is a session of four processes: the API server, the engine core, its worker, and Python's resource
tracker. If the owner is killed, `router.child_process` ends the server.

Everything stays on this machine: no hub, no usage statistics, sockets on 127.0.0.1 or in a temporary folder.
KV events are published there (``ipc``: an engine connects to ``tcp`` addresses that name a host;
vllm/distributed/kv_events.py, ``_is_bind_endpoint``), and replayed on a port. All engines have the same seed
of block hashes. Blocks are 32 tokens: CPU attention takes multiples of 32 only.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from loadtest.processes import free_port
from loadtest.vllm.engine import MODEL_NAME, VllmEngine
from loadtest.vllm.home import HOW_TO_INSTALL, EngineFailed, EnginesHome
from loadtest.vllm.models import tiny_model
from router.child_process import ChildProcess

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.25
TOLD_EVERY_S = 10.0
LOG_LINES = 15

_WHAT_TO_DO = {
    "Address already in use": "another process took its port: start it again",
    "No common block size": "block_tokens must be a multiple of 32 on CPUs",
    "larger than the available KV cache memory": "more kv_blocks, or a smaller max_model_tokens",
    "Cannot allocate memory": "an engine takes 1.5 GiB: end others",
    "No package metadata was found": f"the installation is not whole: {HOW_TO_INSTALL} --again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """Configuration of an engine.

    Args:
        model: A kind of `loadtest.vllm.models`.
        max_model_tokens: Longest prompt and answer together.
        block_tokens: Size of a KV block, a multiple of 32.
        kv_blocks: Blocks of its cache, shared by groups of layers: at least those of one longest prompt for
            each group.
        running_max: Requests that run at a time; others wait in the engine.
        step_tokens_max: Tokens of a scheduling step: longer prompts are prefilled in chunks of it.
        ranks: Data-parallel ranks, behind one API server; each has a cache of ``kv_blocks``.
        flags: More flags of ``vllm serve``.
        environment: More variables.
    """

    model: str = "qwen3"
    max_model_tokens: int = 4096
    block_tokens: int = 32
    kv_blocks: int = 4096
    running_max: int = 16
    step_tokens_max: int = 1024
    ranks: int = 1
    kv_events: bool = True
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class VllmServer(VllmEngine):
    """An engine of ours; an async context manager that starts and stops it.

    It may be stopped or killed and started again: with the same endpoints, and an empty cache.

    Args:
        port: 0 takes a free one.
        home: None: the usual place.
        told: Gets a line of progress now and then.
    """

    def __init__(
        self,
        settings: VllmSettings,
        name: str = "",
        port: int = 0,
        home: EnginesHome | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self.name = name or settings.model
        self.port = port or free_port()
        self._home = home or EnginesHome.usual()
        self._told = told or (lambda line: None)
        # Short: a path of a Unix socket has 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="cw-e-"))
        self.log = self._folder / "log"
        # vLLM gives each rank a file of its own only if "inproc" is in the name (``offset_endpoint_port``).
        events = "events" if settings.ranks == 1 else "inproc"
        super().__init__(
            f"http://127.0.0.1:{self.port}",
            kv_events=f"ipc://{self._folder}/{events}" if settings.kv_events else "",
            kv_replay=f"tcp://127.0.0.1:{free_port(row=settings.ranks)}" if settings.kv_events else "",
        )
        self._process: ChildProcess | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def pid(self) -> int:
        """Process id of the API server, and of the group."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if its API server runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start it and wait until it answers; `EngineFailed` if it is not installed or does not come up."""
        if not self._home.installed():
            raise EngineFailed(f"vLLM is not installed in {self._home.venv}: {HOW_TO_INSTALL}")
        assert not self.running
        model = await asyncio.to_thread(tiny_model, self._home.models, self.settings.model)
        with self.log.open("wb") as log:
            self._process = await ChildProcess.start(
                *self._command(model), log=log, environment=self._environment()
            )
        try:
            await self._healthy()
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """End it as an operator does (SIGTERM), and kill its remaining processes after a while."""
        if self._process is not None:
            await self._process.end(STOP_TIMEOUT_S)
            self._end_group()

    async def kill(self) -> None:
        """Kill all its processes (SIGKILL), as a lack of memory does."""
        if self._process is not None:
            self._end_group()
            await self._process.end(STOP_TIMEOUT_S, signal.SIGKILL)

    async def close(self) -> None:
        """Stop it for good, and remove its folder."""
        try:
            await self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def log_end(self) -> str:
        """Return the last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def _command(self, model: Path) -> list[str]:
        settings = self.settings
        command = [
            *(str(self._home.vllm), "serve", str(model), "--load-format", "dummy"),
            *("--served-model-name", MODEL_NAME, "--host", "127.0.0.1", "--port", str(self.port)),
            *(
                "--dtype",
                "float32",
                "--enforce-eager",
                "--enable-prefix-caching",
                "--enable-prompt-tokens-details",
            ),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--max-model-len", str(settings.max_model_tokens), "--block-size", str(settings.block_tokens)),
            *(
                "--num-gpu-blocks-override",
                str(settings.kv_blocks),
                "--max-num-seqs",
                str(settings.running_max),
            ),
            *("--max-num-batched-tokens", str(settings.step_tokens_max)),
        ]
        if settings.ranks > 1:
            command += ["--data-parallel-size", str(settings.ranks), "--api-server-count", "1"]
        if settings.kv_events:
            events = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": self.kv_events,
                "replay_endpoint": self.kv_replay,
            }
            command += ["--kv-events-config", json.dumps(events)]
        return [*command, *settings.flags]

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "VLLM_RPC_BASE_PATH": str(self._folder),
            "VLLM_CACHE_ROOT": str(self._home.folder / "cache"),
            "VLLM_CONFIG_ROOT": str(self._home.folder / "config"),
            # Routes that empty the cache or pause the engine, which tests want.
            "VLLM_SERVER_DEV_MODE": "1",
            # GiB at most; the cache has as many blocks as the settings say.
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # Engines share cores with all others here: none to itself, and a thread each.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            **self.settings.environment,
        }

    async def _healthy(self) -> None:
        assert self._process is not None
        loop = asyncio.get_running_loop()
        began_s = told_s = loop.time()
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get(f"{self.url}/health")).status_code == 200:
                        self._told(f"{self.name} answers at {self.url} after {loop.time() - began_s:.0f} s")
                        return
                if self._process.returncode is not None:
                    raise EngineFailed(self._what_happened(f"ended with status {self._process.returncode}"))
                now_s = loop.time()
                if now_s > began_s + START_TIMEOUT_S:
                    raise EngineFailed(self._what_happened(f"did not answer within {START_TIMEOUT_S:.0f} s"))
                if now_s > told_s + TOLD_EVERY_S:
                    told_s = now_s
                    self._told(f"{self.name} is starting, {now_s - began_s:.0f} s: {self._last_line()}")
                await asyncio.sleep(POLL_S)

    def _last_line(self) -> str:
        """Return the newest line of its log, without who wrote it and when."""
        lines = self.log.read_text(errors="replace").splitlines() or [""]
        return lines[-1].rpartition("] ")[2].strip()[:80]

    def _what_happened(self, what: str) -> str:
        log = self.log.read_text(errors="replace")
        advice = [text for sign, text in _WHAT_TO_DO.items() if sign in log]
        return "\n".join([f"{self.name} {what}" + "".join(f"; {each}" for each in advice), self.log_end()])

    def _end_group(self) -> None:
        """Kill the remaining processes of its session; nothing else can be in it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
