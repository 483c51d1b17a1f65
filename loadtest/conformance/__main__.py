"""Other routers' suites against Cacheway.

python -m loadtest.conformance                      sglang-router's, from the package index
python -m loadtest.conformance --suite ~/vllm-router   of a checkout
python -m loadtest.conformance -- -k retries -x     what follows -- is pytest's
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.conformance.suites import SuiteMissing, download, run, suite_in

HOME = Path(__file__).resolve().parents[2] / ".peers"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites that are asked for; the status is 1 if a test failed or a suite is missing."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    end = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.conformance", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--suite", type=Path, action="append", help="a checkout of sglang-router or vllm-router"
    )
    options = parser.parse_args(given[:end])
    try:
        suites = [suite_in(path.resolve()) for path in options.suite or [download(HOME)]]
        failed = [suite for suite in suites if run(suite, HOME, given[end + 1 :])]
    except SuiteMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
