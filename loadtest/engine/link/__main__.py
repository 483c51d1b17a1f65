"""``python -m loadtest.engine.link``: one shaped link as a process of its own.

Prints one line when it listens, and ends at once on SIGTERM or SIGINT.
"""

import argparse
import asyncio
import signal
import sys

import uvloop

from loadtest.engine.link.server import LinkServer


def main(argv: list[str]) -> int:
    """Serve until told to stop; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.engine.link", description="A link between sites that engines share."
    )
    parser.add_argument("--host", default="127.0.0.1", help="[%(default)s]")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one [%(default)s]")
    parser.add_argument("--gbps", type=float, default=100.0, help="capacity in Gbit/s [%(default)s]")
    parser.add_argument("--rtt-ms", type=float, default=0.0, help="round trip in ms [%(default)s]")
    options = parser.parse_args(argv)
    if options.gbps <= 0 or options.rtt_ms < 0:
        parser.error("--gbps must be above 0, and --rtt-ms at least 0")
    try:
        uvloop.run(_run(options.host, options.port, options.gbps, options.rtt_ms))
    except OSError as error:
        print(f"link: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(host: str, port: int, gbps: float, rtt_ms: float) -> None:
    stop = asyncio.Event()
    for end in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(end, stop.set)
    server = LinkServer(gbps, rtt_ms, port)
    await server.open(host)
    print(f"link ready: {server.url}", flush=True)
    await stop.wait()
    server.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
