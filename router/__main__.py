"""Entry point: connects the command line to the functions that its commands run.

Each command imports its function when it runs, so that ``cacheway config`` needs no server and the gateway
needs no development tools. Only this module of the gateway may import `loadtest`.
"""

import gc
import os
import sys
from typing import TYPE_CHECKING

from router.lean_imports import lean_imports

if TYPE_CHECKING:
    from router.sources import Loaded


def _serve(loaded: "Loaded") -> int:
    gc.collect()  # the parser of the command line, 0.3 MB, which would be frozen, too
    with lean_imports():
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


def _calibrate(argv: list[str]) -> int:
    from loadtest.profile.cli import main as calibrate

    return calibrate(argv)


def _keys(argv: list[str]) -> int:
    from router.tenants.cli import main as keys

    return keys(argv)


TOOLS = {
    "keys": (_keys, "make and check the keys of tenants"),
    "engine": (_engine, "run emulated engines"),
    "demo": (_demo, "compare policies on emulated engines (extra: loadtest)"),
    "simulate": (_simulate, "compare policies on recorded traffic in virtual time (extra: loadtest)"),
    "plan": (_plan, "find the cheapest fleet for a service level (extra: loadtest)"),
    "calibrate": (_calibrate, "fit an engine profile for simulate and plan (extra: loadtest)"),
}


def main() -> int:
    """Run the command line of this process."""
    with lean_imports():
        from router import cli

    return cli.main(sys.argv[1:], os.environ, serve=_serve, tools=TOOLS)


if __name__ == "__main__":
    sys.exit(main())
