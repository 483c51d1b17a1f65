"""``cacheway engine``: emulated engines on the command line.

Prints one line when all of them listen, and ends at once on SIGTERM or SIGINT.
"""

import argparse
import asyncio
import errno
import gc
import signal
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from typing import Any, get_args

import uvloop

from loadtest.command_line import CommandParser
from loadtest.engine.engine import EmulatedEngine, answer_control, shared_pool
from loadtest.engine.handover import HandoverSettings
from loadtest.engine.kv.tiers import PrefetchPolicy, WritePolicy
from loadtest.engine.kv_settings import KvEventsSettings
from loadtest.engine.profiles import PROFILES, Interleave, QueueOrder
from loadtest.engine.server import Answer, Connection, Request
from loadtest.engine.settings import Dialect, EngineSettings


def main(argv: list[str]) -> int:
    """Run engines until a signal; return the exit status."""
    parser = _parser(argv)
    options = vars(parser.parse_args(argv))
    engines, control_port = options.pop("engines"), options.pop("control_port")
    wire = {name: options.pop(name) for name in _WIRE}
    try:
        options |= {name: tuple(options[name]) for name in ("models", "loras")}
        settings = EngineSettings(**options, **_wire(wire))
    except ValueError as error:
        parser.error(str(error))
    if engines < 1:
        parser.error("--engines must be at least 1")
    try:
        uvloop.run(_run(settings, engines, control_port))
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        hint = "; choose another port with --port, or 0 for free ones" if taken else ""
        print(f"cacheway engine: {error}{hint}", file=sys.stderr)
        return 1
    return 0


class ControlPort:
    """Answers ``/_fault`` and ``/_stats`` for all engines: for those that refuse connections."""

    def __init__(self, engines: MutableMapping[int, EmulatedEngine]) -> None:
        self.body_bytes_max = 1 << 20
        self._engines = engines

    def handle(self, request: Request, answer: Answer) -> None:
        """See `Handler`."""
        answer_control(self._engines, None, request, answer)

    def error_body(self, status: int) -> bytes:
        """See `Handler`; no fault strikes here."""
        raise AssertionError(status)

    def opened(self, connection: Connection) -> None:
        """See `Handler`."""

    def closed(self, connection: Connection) -> None:
        """See `Handler`."""


async def _run(settings: EngineSettings, engines: int, control_port: int | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for end in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(end, stop.set)
    siblings: dict[int, EmulatedEngine] = {}
    pool = shared_pool(settings)
    async with AsyncExitStack() as stack:
        urls = []
        for number in range(engines):
            engine = EmulatedEngine(_numbered(settings, number), siblings, pool)
            urls.append((await stack.enter_async_context(engine)).url)
        if control_port is not None:
            control = await loop.create_server(
                lambda: Connection(ControlPort(siblings)), settings.host, control_port
            )
            stack.callback(control.close)
            urls.append(f"control http://{settings.host}:{control.sockets[0].getsockname()[1]}")
        # All present objects live as long as the process: the collector need not look at them again.
        gc.collect()
        gc.freeze()
        print(f"cacheway engine ready: {settings.dialect} {' '.join(urls)}", flush=True)
        await stop.wait()


_WIRE = (
    "kv_events_config",
    "disaggregation_mode",
    "disaggregation_bootstrap_port",
    "disaggregation_bootstrap_timeout",
    "disaggregation_waiting_timeout",
    "enable_pd_role_switch",
    "kv_transfer_config",
    "side_channel_port",
    "kv_link",
)


def _wire(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that engines take as JSON, or in several flags."""
    handover = None
    if given["kv_transfer_config"]:
        port = given["side_channel_port"]
        handover = HandoverSettings.parse_transfer_config(given["kv_transfer_config"], port)
    if given["disaggregation_mode"] != "null":
        handover = HandoverSettings(
            protocol="sglang",
            part=given["disaggregation_mode"],
            port=given["disaggregation_bootstrap_port"],
            bootstrap_s=given["disaggregation_bootstrap_timeout"],
            waiting_s=given["disaggregation_waiting_timeout"],
            switches=given["enable_pd_role_switch"],
        )
    if given["kv_link"]:
        if handover is None:
            raise ValueError("kv_link: an engine that hands nothing over sends no KV")
        handover = replace(handover, kv_link=given["kv_link"])
    events = given["kv_events_config"]
    return {"handover": handover, "kv_events": KvEventsSettings.parse(events) if events else None}


def _numbered(settings: EngineSettings, number: int) -> EngineSettings:
    """The settings of one of several engines: each has ports of its own."""
    events, handover = settings.kv_events, settings.handover
    return replace(
        settings,
        port=settings.port + number if settings.port else 0,
        kv_events=None if events is None else events.shifted(number * settings.dp_ranks),
        handover=None
        if handover is None
        else replace(handover, port=handover.port + number if handover.port else 0),
    )


def _defaults(argv: Sequence[str]) -> EngineSettings:
    """The settings that other flags change: those of ``--profile``, if it names one."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--profile", default="")
    name: str = first.parse_known_args(argv)[0].profile
    return EngineSettings.of(name) if name in PROFILES else EngineSettings()


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Tells the defaults that there are, as they would be written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if default is None or default in ("", ()):
            return action.help
        if isinstance(default, tuple):
            return f"{action.help} (default: {' '.join(default)})"
        return super()._get_help_string(action)


def _parser(argv: Sequence[str] = ()) -> argparse.ArgumentParser:
    defaults = _defaults(argv)
    parser = CommandParser(
        prog="cacheway engine",
        description="Emulated SGLang or vLLM engines: real HTTP, real block cache, modelled time.",
        formatter_class=_Help,
    )

    def flag(name: str, text: str, spelled: str | None = None, **more: Any) -> None:
        default = getattr(defaults, name)
        if not more:
            more["type"] = type(default)
        option = f"--{spelled or name.replace('_', '-')}"
        parser.add_argument(option, dest=name, default=default, help=text, **more)

    flag("host", "address to listen on")
    flag("port", "port of the first engine, the others follow; 0 takes free ones")
    parser.add_argument("--engines", type=int, default=1, help="how many engines to emulate")
    parser.add_argument("--control-port", type=int, help="port for /_fault?port= and /_stats?port=")
    flag("dialect", "whose wire format and cache rules to follow", choices=get_args(Dialect))
    flag("profile", "an engine whose numbers the other flags change", choices=sorted(PROFILES))
    flag("models", "names of the served model", "served-model-name", nargs="+", metavar="NAME")
    flag("loras", "LoRA adapters, requested by name", "lora-modules", nargs="*", metavar="NAME")
    flag(
        "enable_lora",
        "load and unload further adapters while it serves, as the engines' API says",
        action=argparse.BooleanOptionalAction,
    )
    flag("max_loaded_loras", "loaded adapters that stay in memory; 0: all")
    flag("lora_load_ms", "time of loading an adapter, in milliseconds")
    flag("block_tokens", "tokens of a KV block")
    flag("cache_tokens", "KV capacity of one engine, in tokens")
    flag("host_tokens", "KV capacity of the host tier, in tokens; 0: none")
    flag("write_policy", "when blocks are copied to the host tier", choices=get_args(WritePolicy))
    flag("prefetch_policy", "how long a request waits for the shared pool", choices=get_args(PrefetchPolicy))
    flag("pool_tokens", "room of the pool that all engines of this process share, in tokens; 0: none")
    flag("max_model_len", "longest prompt plus output, in tokens")
    flag("prefill_tokens_per_s", "prefill speed at an empty context, in tokens/s")
    flag("prefill_base_ms", "fixed time of a prefill step, in milliseconds")
    flag("prompt_base_ms", "fixed time of a prompt, however many steps it takes, in milliseconds")
    flag("context_tokens", "cached tokens that double the cost of an uncached one")
    flag("chunk_tokens", "tokens that share a prefill step; 0: one whole prompt at a time")
    flag("dp_ranks", "data-parallel attention ranks, each with its share of cache and slots")
    flag("interleave", "what decode does during a prefill step", choices=get_args(Interleave))
    flag("queue_order", "who is admitted first", choices=get_args(QueueOrder))
    flag("max_running", "requests that prefill or decode at the same time")
    flag("tpot_ms", "time of a decode step, in milliseconds; 0: answers come in one piece")
    flag("tpot_batch", "running requests that double the time of a decode step; 0: none do")
    flag("mtp_speedup", "tokens of a request per decode step")
    flag("speed", "divide all modelled times by this")
    flag("output_tokens", "mean length of an answer that the request does not bound")
    flag("emit_interval_ms", "tokens due within this real time are sent as one chunk, in milliseconds")
    flag("cache_report", "report cached_tokens in usage", action=argparse.BooleanOptionalAction)
    flag("body_bytes_max", "largest request body, in bytes")
    flag(
        "journal",
        "file that gets the X-Request-Id of each request that brings work",
        metavar="FILE",
        type=str,
    )
    parser.add_argument(
        "--kv-events-config", metavar="JSON", help="publish KV cache events, as the engines' own flag says"
    )
    flag("kv_events_legacy", "vLLM: events as arrays, as before 2026", action=argparse.BooleanOptionalAction)
    _add_hand_over(parser)
    flags = vars(parser.parse_args([])).keys() | {"kv_events", "handover"}
    assert {field.name for field in fields(EngineSettings)} <= flags
    return parser


def _add_hand_over(parser: argparse.ArgumentParser) -> None:
    """Add the engines' own flags for prefill and decode on different workers."""
    add = parser.add_argument
    add(
        "--disaggregation-mode",
        choices=("null", "prefill", "decode"),
        default="null",
        help="SGLang: its part",
    )
    add("--disaggregation-bootstrap-port", type=int, default=8998, help="SGLang: of the first prefill engine")
    add(
        "--disaggregation-bootstrap-timeout",
        type=float,
        default=300.0,
        help="SGLang: of a prefill leg, in seconds",
    )
    add(
        "--disaggregation-waiting-timeout",
        type=float,
        default=300.0,
        help="SGLang: of a decode leg, in seconds",
    )
    add("--enable-pd-role-switch", action="store_true", help="SGLang: POST /pd_role_switch changes its part")
    add("--kv-transfer-config", metavar="JSON", help="vLLM: connector and role, as its own flag says")
    add("--side-channel-port", type=int, default=5600, help="vLLM: NIXL's, or Mooncake's bootstrap port")
    add("--kv-link", metavar="URL", help="KV leaves over this shared link (python -m loadtest.engine.link)")
