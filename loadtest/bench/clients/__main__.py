"""Run others' load clients through a gateway with real engines, and compare their counts with the gateway's.

    python -m loadtest.vllm serve qwen3 --count 2                 engines, and in another shell
    cacheway serve --worker-urls URL URL                           a gateway
    python -m loadtest.bench.clients install [NAME ...]            clients; one that is there is left as it is
    python -m loadtest.bench.clients run [NAME ...]                all that are installed, or these

The gateway and the engines must have no other traffic. Status 1: a client failed, or counts differ. Several
gateway processes (``--workers``) give no percentiles.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import httpx
from rich.console import Console

from loadtest.bench.clients.client import Load
from loadtest.bench.clients.comparison import Comparison, table
from loadtest.bench.clients.field import CLIENTS
from loadtest.bench.clients.gateway_view import GatewayView
from loadtest.bench.clients.installation import HOW_TO_INSTALL, Installation, InstallFailed
from loadtest.bench.clients.run import ClientFailed, run
from loadtest.vllm import MODEL_NAME, EnginesHome

WIDTH = 170


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say."""
    options = _parser().parse_args(arguments)
    home = EnginesHome.usual()
    installation = Installation(home)
    if options.what == "install":
        return _install(installation, options.clients or list(CLIENTS))
    console = Console(width=WIDTH)
    load = Load(
        options.gateway.rstrip("/"),
        options.model,
        options.tokenizer or home.models / "qwen3",
        requests=options.requests,
        concurrency=options.concurrency,
        rate_per_s=options.rate,
        seed=options.seed,
    )
    try:
        return asyncio.run(_run_all(installation, options, load, console))
    except httpx.HTTPError as error:
        print(f"the gateway or an engine does not answer: {error!r}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _install(installation: Installation, names: Sequence[str]) -> int:
    status = 0
    for name in names:
        try:
            installation.install(CLIENTS[name])
        except InstallFailed as error:
            print(f"{name}: {error}", file=sys.stderr)
            status = 1
    return status


async def _run_all(
    installation: Installation, options: argparse.Namespace, load: Load, console: Console
) -> int:
    comparisons: list[Comparison] = []
    status = 0
    root = options.out or Path(tempfile.mkdtemp(prefix="cw-clients-"))
    with GatewayView((options.admin or options.gateway).rstrip("/")) as gateway:
        for name in options.clients or CLIENTS:
            client = CLIENTS[name]
            program = installation.program(client)
            if program is None:
                console.print(f"{name}: not installed, left out; {HOW_TO_INSTALL} {name}", highlight=False)
                continue
            console.print(f"{name} ...", highlight=False)
            folder = root / name
            folder.mkdir(parents=True, exist_ok=True)
            try:
                compared = await run(client, program, load, gateway, folder, options.timeout)
            except ClientFailed as error:
                console.print(str(error), style="red", highlight=False, markup=False)
                status = 1
                continue
            comparisons.append(compared)
            for disagreement in (*compared.disagreements, *compared.engine_disagreements):
                console.print(f"  {disagreement}", style="red", highlight=False)
                status = 1
    console.print("client / gateway (/ engines); times in ms, in brackets what the client counts more")
    console.print(table(comparisons))
    console.print(f"reports and logs: {root}", highlight=False)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.clients", description="Others' load clients through a gateway."
    )
    what = parser.add_subparsers(dest="what", required=True)
    install = what.add_parser("install", help="install clients, each in a virtual environment of its own")
    runs = what.add_parser("run", help="run them and compare")
    for each in (install, runs):
        each.add_argument(
            "clients", nargs="*", choices=[*CLIENTS, []], metavar="NAME", help=" ".join(CLIENTS)
        )
    usual = Load("", "", Path())
    runs.add_argument("--gateway", default="http://127.0.0.1:30000", metavar="URL", help="[%(default)s]")
    runs.add_argument("--admin", metavar="URL", help="its admin API, if that has a port of its own")
    runs.add_argument("--model", default=MODEL_NAME, help="[%(default)s]")
    runs.add_argument("--tokenizer", type=Path, metavar="DIR", help="of the model [that of the tiny qwen3]")
    runs.add_argument("--requests", type=int, default=usual.requests, help="of each client [%(default)s]")
    runs.add_argument("--concurrency", type=int, default=usual.concurrency, help="[%(default)s]")
    runs.add_argument("--rate", type=float, default=usual.rate_per_s, metavar="PER_S", help="[%(default)s]")
    runs.add_argument("--seed", type=int, default=usual.seed, help="same seed, same prompts [%(default)s]")
    runs.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of each [%(default)s]")
    runs.add_argument("--out", type=Path, metavar="DIR", help="reports and logs [a temporary folder]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
