"""The program: wires the command line to what its commands run.

Everything is imported when it is needed, so that ``cacheway config`` starts without the server and the
gateway without the development tools. This is the only module of the gateway that may import `loadtest`.
"""

import os
import sys

from router import cli
from router.sources import Loaded


def _serve(loaded: Loaded) -> int:
    from router.serving import serve

    return serve(loaded)


def _engine(argv: list[str]) -> int:
    from loadtest.engine.cli import main as engine

    return engine(argv)


def _demo(argv: list[str]) -> int:
    from loadtest.demo import main as demo

    return demo(argv)


def _simulate(argv: list[str]) -> int:
    from loadtest.simulator.cli import main as simulate

    return simulate(argv)


def _plan(argv: list[str]) -> int:
    from loadtest.plan.cli import main as plan

    return plan(argv)


def _keys(argv: list[str]) -> int:
    from router.tenants.cli import main as keys

    return keys(argv)


TOOLS = {
    "keys": (_keys, "make and check the keys of tenants"),
    "engine": (_engine, "run emulated engines (extra: loadtest)"),
    "demo": (_demo, "compare policies on emulated engines (extra: loadtest)"),
    "simulate": (_simulate, "compare policies on recorded traffic in virtual time (extra: loadtest)"),
    "plan": (_plan, "find the cheapest fleet for a service level (extra: loadtest)"),
}


def main() -> int:
    """Run the command line of this process."""
    return cli.main(sys.argv[1:], os.environ, serve=_serve, tools=TOOLS)


if __name__ == "__main__":
    sys.exit(main())
