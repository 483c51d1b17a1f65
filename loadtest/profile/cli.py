"""``cacheway calibrate``: an engine profile from a gateway's request trace, or from a running engine.

cacheway calibrate --trace requests.jsonl -o engine.yaml
cacheway calibrate --from-metrics http://10.0.0.7:30001 --probe -o engine.yaml
"""

import argparse
import sys
from pathlib import Path

from loadtest.command_line import CommandParser
from loadtest.profile.engine_file import EngineFileError, build_engine, written
from loadtest.profile.live import MEASURE_S, measured_engine
from loadtest.profile.trace import calibrate, read_lines
from loadtest.traces import TraceError

SHOWN_TOKENS = 1_000
"""Length of the prompt whose time is printed: no price of prefill means much without the others."""


def main(argv: list[str]) -> int:
    """Fit a profile, write it and say how sure it is.

    Return 0, 1 if too little is known or something cannot be read or written, 2 for a wrong command line, 130
    after Ctrl-C.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    if options.measure_s <= 0:
        parser.error("--measure-s must be above 0")
    try:
        if options.from_metrics:
            own = measured_engine(
                options.from_metrics,
                seconds=options.measure_s,
                probe=options.probe,
                path=options.output,
            )
        else:
            own = build_engine(calibrate(read_lines(options.trace), options.name))
            heading = f"Fitted by cacheway calibrate to {options.trace.name}."
            options.output.write_text(written(own.given, heading), encoding="utf-8")
            print(f"wrote {options.output}; use it with: cacheway simulate --engine {options.output}")
    except (EngineFileError, TraceError, OSError) as error:
        print(f"cacheway calibrate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    given = own.given
    prefill, decode = given.prefill, given.decode
    quadratic = 1 + SHOWN_TOKENS / 2 / prefill.context_doubling_tokens
    shown_s = prefill.prompt_s + SHOWN_TOKENS / prefill.tokens_per_s * quadratic
    print(
        f"prefill   {prefill.tokens_per_s:,.0f} tokens/s at an empty context, half as fast behind "
        f"{prefill.context_doubling_tokens:,.0f} tokens, {1e3 * prefill.prompt_s:.3g} ms of each prompt; "
        f"{SHOWN_TOKENS:,} tokens take {1e3 * shown_s:.3g} ms"
    )
    print(
        f"decode    {1e3 * decode.step_s:.3g} ms a step, {1e3 * decode.request_s:.3g} ms more for each "
        f"request and {1e9 * decode.context_token_s:.3g} ns for each token of context"
    )
    print(f"capacity  {given.cache.tokens:,} tokens")
    for note in given.notes:
        print(f"· {note}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="cacheway calibrate",
        description="Fit an engine profile for `cacheway simulate --engine FILE` and `cacheway plan`.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="request trace of a gateway (--request-trace)"
    )
    source.add_argument("--from-metrics", metavar="URL", help="a running engine, which is measured")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("engine.yaml"), metavar="FILE", help="[default engine.yaml]"
    )
    parser.add_argument("--name", default="calibrated", help="name in reports [default calibrated]")
    parser.add_argument("--probe", action="store_true", help="--from-metrics: send a few prompts, too")
    parser.add_argument(
        "--measure-s",
        type=float,
        default=MEASURE_S,
        metavar="S",
        help=f"--from-metrics: seconds to watch its counters [default {MEASURE_S:g}]",
    )
    return parser
