"""Prefill and decode apart in two sites, with kills and a bad link on the way: do they keep their promises?

    python -m loadtest.bench.prefill_decode                    five minutes, SGLang
    python -m loadtest.bench.prefill_decode --protocol nixl    vLLM; or mooncake
    python -m loadtest.bench.prefill_decode --seconds 60 --no-disaster

Two prefill and two decode workers here, two prefill workers behind a link of 50 Gbit/s, two replicas, a
Valkey (`loadtest.chaos.prefill_decode`). Prints times to first token by phase and kind, who prefilled, what
left over the link, and every promise (`loadtest.chaos.pair_promises`); the status is 1 if one was broken.

Client, engines and gateways share the machine: compare phases, not machines.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from loadtest.chaos.crowd import KINDS, Served
from loadtest.chaos.pair_promises import judge_pairs
from loadtest.chaos.prefill_decode import PrefillDecodePlan, PrefillDecodeRun, run_prefill_decode
from loadtest.chaos.promises import ttft_s, verdict
from loadtest.processes import ChildFailed
from loadtest.report import milliseconds, percentile

EXPLAINED = 3
"""Of the newest decisions so many are told in words."""


def main() -> int:
    """Run it and print the tables; the status is 1 if a promise was broken."""
    defaults = PrefillDecodePlan()
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench.prefill_decode", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    more = parser.add_argument
    more("--seconds", type=float, default=defaults.seconds, help="[%(default)s]")
    more(
        "--protocol", choices=("sglang", "nixl", "mooncake"), default=defaults.protocol, help="[%(default)s]"
    )
    more("--rate-per-s", type=float, default=defaults.rate_per_s, help="requests [%(default)s]")
    more("--gbps", type=float, default=defaults.gbps, help="capacity of the link [%(default)s]")
    more("--rtt-ms", type=float, default=defaults.rtt_ms, help="its round trip [%(default)s]")
    more("--cap-ratio", type=float, default=defaults.cap_ratio, help="what KV may take [%(default)s]")
    more(
        "--disaster", action=argparse.BooleanOptionalAction, default=defaults.disaster, help="let things fail"
    )
    more("--seed", type=int, default=defaults.seed, help="of the crowd [%(default)s]")
    more("flags", nargs="*", default=(), help="flags of `cacheway serve`, behind --")
    plan = PrefillDecodePlan(**vars(parser.parse_args()))
    try:
        run = uvloop.run(run_prefill_decode(plan))
    except ChildFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    promises = judge_pairs(run)
    console = Console(width=120)
    console.print(_times(run))
    console.print(verdict(promises))
    print("\n".join(_figures(run)))
    return 0 if all(promise.kept for promise in promises) else 1


def _times(run: PrefillDecodeRun) -> Table:
    phases = list(dict.fromkeys(one.phase for one in run.served))
    table = Table(
        "", *phases, box=SIMPLE_HEAD, title="TTFT of answered streams, P50 / P90 / P99; how all ended"
    )
    for kind in KINDS:
        of_kind = [one for one in run.served if one.kind == kind]
        table.add_row(kind, *(_ttft(one for one in of_kind if one.phase == phase) for phase in phases))
    for end in dict.fromkeys(one.visit.end for one in run.served):
        counts = Counter(one.phase for one in run.served if one.visit.end is end)
        table.add_row(end.value, *(str(counts[phase]) for phase in phases))
    return table


def _ttft(served: Iterable[Served]) -> str:
    times = ttft_s(served)
    return " / ".join(milliseconds(percentile(times, share)) for share in (0.5, 0.9, 0.99))


def _figures(run: PrefillDecodeRun) -> Iterator[str]:
    yield "prefilled by " + ", ".join(f"{name} {count}" for name, count in sorted(run.prefilled.items()))
    hit_ratio = run.cached_tokens / max(run.prompt_tokens, 1)
    yield f"hit ratio {hit_ratio:.1%} of {run.prompt_tokens} prompt tokens"
    link = run.link
    yield (
        f"link: {link['sent_bytes'] / 1e9:.1f} GB in {link['arrived']} transfers, {link['lost']} lost, "
        f"{link['sent_bytes'] * 8e-9 / run.plan.seconds:.1f} Gbit/s on average"
    )
    decided = ", ".join(f"{count} {reason}" for reason, count in sorted(run.offload["decided"].items()))
    yield f"offload, as a replica that lived to the end decided: {decided or 'nothing'}"
    remote = [each["why"] for each in run.offload["latest"] if each["remote"]]
    yield from (f"  {why}" for why in remote[:EXPLAINED])


if __name__ == "__main__":
    sys.exit(main())
