"""Real engines on this machine: vLLM for CPUs with tiny models.

    python -m loadtest.vllm install                 once, three to five minutes
    python -m loadtest.vllm models                  make the tiny models again
    python -m loadtest.vllm serve gemma3 --count 2  engines until Ctrl-C, and how to reach them

They are in ~/.cache/cacheway/engines, or where CACHEWAY_ENGINES says.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence

from loadtest.vllm.home import EngineFailed, EnginesHome
from loadtest.vllm.install import install
from loadtest.vllm.models import KINDS, tiny_model
from loadtest.vllm.server import VllmServer, VllmSettings

FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the status is 1 if an engine cannot be had."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    end = given.index("--") if "--" in given else len(given)
    options = _parser().parse_args(given[:end], argparse.Namespace(flags=given[end + 1 :]))
    home = EnginesHome.usual()
    try:
        if options.what == "install":
            install(home, again=options.again)
        elif options.what == "models":
            for kind in options.kinds or KINDS:
                print(tiny_model(home.models, kind))
        else:
            with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
                asyncio.run(_serve(options, home))
    except EngineFailed as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


async def _serve(options: argparse.Namespace, home: EnginesHome) -> None:
    settings = VllmSettings(
        model=options.kind,
        max_model_tokens=options.max_model_tokens,
        kv_blocks=options.kv_blocks,
        flags=tuple(options.flags),
    )
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with contextlib.AsyncExitStack() as stack:
        engines = []
        for number in range(options.count):
            port = options.port + number if options.port else 0
            engine = VllmServer(settings, f"{options.kind}-{number}", port, home, told=print)
            stack.push_async_callback(engine.close)
            engines.append(engine)
        await asyncio.gather(*(engine.start() for engine in engines))
        for engine in engines:
            print(f"{engine.url}  events {engine.kv_events}  replay {engine.kv_replay}  log {engine.log}")
        urls = [engine.url for engine in engines]
        print(f"cacheway serve --worker-urls {' '.join(urls)}")
        print(f"CACHEWAY_ENGINES_RUNNING='{options.kind}={','.join(urls)}' make test-engines")
        await asyncio.Event().wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.vllm", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    what = parser.add_subparsers(dest="what", required=True)
    installed = what.add_parser("install", help="install vLLM in a virtual environment of its own")
    installed.add_argument("--again", action="store_true", help="take all steps even if it is there")
    models = what.add_parser("models", help="make tiny models")
    models.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)} [all]")
    serve = what.add_parser("serve", help="run engines until Ctrl-C; behind -- are flags of vllm serve")
    serve.add_argument("kind", choices=KINDS, help="model")
    serve.add_argument("--count", type=int, default=1, help="engines [%(default)s]")
    serve.add_argument("--port", type=int, default=0, help="of the first; others follow [free ones]")
    serve.add_argument("--max-model-tokens", type=int, default=4096, help="prompt and answer [%(default)s]")
    serve.add_argument("--kv-blocks", type=int, default=4096, help="blocks of the cache [%(default)s]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
