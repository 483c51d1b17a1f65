"""``python -m loadtest.chaos sites``: prefill and decode apart, partly in another site, and failures.

    python -m loadtest.chaos sites                    five minutes, SGLang
    python -m loadtest.chaos sites --protocol nixl    vLLM; or mooncake
    python -m loadtest.chaos sites --seconds 60 --no-disaster

    dc1   prefill p1 p2, decode d1 d2, replicas r1 r2, a Valkey
    dc2   prefill far1 far2, faster; their KV leaves over a shaped link (`loadtest.engine.link`)

    0.15  p2 killed ─ 0.22 back         0.45  link at 10 % ─ 0.65 as before      (shares of the run's seconds)
    0.30  d2 killed ─ 0.37 back         0.72  r2 killed      0.80 link dead ─ 0.83 back

The replica comes back when the last request was sent. The prompts are chat, growing sessions, and long ones:
nearly the capacity of both local workers. Prints times to first token by scene and kind, prefills by worker,
egress over the link, and every promise (`loadtest.chaos.site_promises`); the status is 1 if one was broken.
All processes share the machine: compare scenes, not machines.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.chaos.crowd import KINDS, Mix
from loadtest.chaos.fault_injector import LINK_SLOW_RATIO
from loadtest.chaos.play import Play, Scene, Seen
from loadtest.chaos.promises import perform, times
from loadtest.chaos.schedule import Strike
from loadtest.chaos.site_promises import FAR, judge_sites, prefilled
from loadtest.chaos.testbed import SIDE_PORT, Part, Tenant, Troupe, disaggregated
from loadtest.engine import EngineSettings
from loadtest.engine.profiles import PROFILES
from loadtest.workload import MODEL
from policies import HAND_OVERS, HandOverName

LOCAL = EngineSettings(
    models=(MODEL,), prefill_tokens_per_s=6_000, prefill_base_ms=5, tpot_ms=5, chunk_tokens=4096
)
REMOTE = replace(LOCAL, prefill_tokens_per_s=15_000.0)
"""Two and a half times as fast: about what an H200 is to an H20 (PrfaaS, arXiv:2604.15039, table 6)."""

KV_TOKEN_BYTES = PROFILES["dense-70b"].shape.token_bytes

SITE = "dc1"
LEASE_S = 5
"""Lifetime of KV that is not fetched: shorter than vLLM's default, so that a run can see its end."""

_CLASSES = {SITE: "h20", FAR: "h200"}
"""Prices are learnt for each class."""

_CONNECTORS = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}
_WORKERS = (
    *(("p1", "prefill", SITE), ("p2", "prefill", SITE), ("d1", "decode", SITE), ("d2", "decode", SITE)),
    *(("far1", "prefill", FAR), ("far2", "prefill", FAR)),
)

MIX = Mix(
    shares=(0.55, 0.37, 0.08),
    short_tokens=(200, 1500),
    long_tokens=(10_000, 30_000),
    follow_up_tokens=400,
    context_tokens_max=12_000,
    output_tokens=(8, 60),
    deadline_share=0.0,
)

EXPLAINED = 3
"""Number of the newest decisions that are explained."""


@dataclass(frozen=True, slots=True)
class SitesPlan:
    """Processes and load of a run.

    Attributes:
        gbps: Capacity of the link, in Gbit/s.
        cap_ratio: Share of it that KV may take in any second.
        flags: More flags of ``cacheway serve``.
        disaster: Let faults strike.
    """

    protocol: HandOverName = "sglang"
    gbps: float = 50.0
    rtt_ms: float = 10.0
    cap_ratio: float = 0.85
    flags: Sequence[str] = ()
    seconds: float = 300.0
    rate_per_s: float = 5.0
    disaster: bool = True
    seed: int = 1

    @property
    def play(self) -> Play:
        """The play of this plan."""
        scenes = {
            "calm": 0.0,
            "workers killed": 0.15,
            f"link at {LINK_SLOW_RATIO:.0%}": 0.45,
            "replica killed, link dead": 0.65,
            "after": 0.88,
        }
        strikes = (
            ("worker killed", "p2", 0.15, 0.22),
            ("worker killed", "d2", 0.30, 0.37),
            ("link slow", "link", 0.45, 0.65),
            ("replica killed", "r2", 0.72, 1.0),
            ("link dead", "link", 0.80, 0.83),
        )
        return Play(
            self.troupe,
            [
                Scene(name, share * self.seconds, self.rate_per_s)
                for name, share in scenes.items()
                if self.disaster or not share
            ],
            self.seconds,
            [
                Strike(begin * self.seconds, kind, target, (end - begin) * self.seconds)
                for kind, target, begin, end in strikes
                if self.disaster
            ],
            mix=MIX,
            seed=self.seed,
        )

    @property
    def troupe(self) -> Troupe:
        """Its processes."""
        link = {"gbps": self.gbps, "rtt_ms": self.rtt_ms, "cap_ratio": self.cap_ratio}
        return Troupe(
            [self._part(*each) for each in _WORKERS],
            {"r1": 1, "r2": 1},
            [Tenant("all")],
            ("--log-level", "warning", *self.flags),
            settings={
                "fleet": {"site": SITE, "links": {f"{FAR}>{SITE}": link}, "health_check_interval_s": 2.0},
                "placement": {"models": {"*": {"kv_bytes_per_token": KV_TOKEN_BYTES}}},
            },
            link=("--gbps", str(self.gbps), "--rtt-ms", str(self.rtt_ms)),
        )

    def _part(self, name: str, role: str, site: str) -> Part:
        engine = LOCAL if site == SITE else REMOTE
        labels = f"site={site} handover={self.protocol} worker_class={_CLASSES[site]}"
        if self.protocol == "sglang":
            flags = disaggregated(role)
        else:
            engine = replace(engine, dialect="vllm")
            mooncake = {"prefill": "kv_producer", "decode": "kv_consumer"}[role]
            config = {
                "kv_connector": _CONNECTORS[self.protocol],
                "kv_role": mooncake if self.protocol == "mooncake" else "kv_both",
                "kv_connector_extra_config": {"kv_lease_duration": LEASE_S},
            }
            flags = ["--kv-transfer-config", json.dumps(config), "--side-channel-port", SIDE_PORT]
        return Part(name, role, engine, flags, labels, linked=site == FAR)


def main(arguments: Sequence[str]) -> int:
    """Run it and print the tables; the status is 1 if a promise was broken."""
    defaults = SitesPlan()
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.chaos sites",
        description=(__doc__ or "").split(": ", maxsplit=1)[1].split("\n", maxsplit=1)[0],
    )
    more = parser.add_argument
    more("--seconds", type=float, default=defaults.seconds, help="[%(default)s]")
    more("--protocol", choices=tuple(HAND_OVERS), default=defaults.protocol, help="[%(default)s]")
    more("--rate-per-s", type=float, default=defaults.rate_per_s, help="requests [%(default)s]")
    more("--gbps", type=float, default=defaults.gbps, help="capacity of the link [%(default)s]")
    more("--rtt-ms", type=float, default=defaults.rtt_ms, help="its round trip [%(default)s]")
    more("--cap-ratio", type=float, default=defaults.cap_ratio, help="what KV may take [%(default)s]")
    more(
        "--disaster", action=argparse.BooleanOptionalAction, default=defaults.disaster, help="let things fail"
    )
    more("--seed", type=int, default=defaults.seed, help="of the crowd [%(default)s]")
    more("flags", nargs="*", default=(), help="flags of `cacheway serve`, behind --")
    return perform(SitesPlan(**vars(parser.parse_args(arguments))).play, judge_sites, shown)


def shown(seen: Seen) -> Iterator[Table | str]:
    """Tables and figures of a run."""
    yield times(seen, ((kind, [one for one in seen.served if one.kind == kind]) for kind in KINDS))
    scenes = [scene.name for scene in seen.play.scenes]
    ends = Table("", *scenes, box=SIMPLE_HEAD, title="How requests ended")
    for end in dict.fromkeys(one.visit.end for one in seen.served):
        counts = Counter(one.phase for one in seen.served if one.visit.end is end)
        ends.add_row(end.value, *(str(counts[scene]) for scene in scenes))
    yield ends
    requests, prompt_tokens, cached_tokens = prefilled(seen)
    yield "prefilled by " + ", ".join(f"{name} {count}" for name, count in sorted(requests.items()))
    yield f"hit ratio {cached_tokens / max(prompt_tokens, 1):.1%} of {prompt_tokens} prompt tokens"
    link = seen.link
    yield (
        f"link: {link['sent_bytes'] / 1e9:.1f} GB in {link['arrived']} transfers, {link['lost']} lost, "
        f"{link['sent_bytes'] * 8e-9 / seen.play.seconds:.1f} Gbit/s on average"
    )
    decided = ", ".join(f"{count} {reason}" for reason, count in sorted(seen.offload["decided"].items()))
    yield f"offload, as a replica that lived to the end decided: {decided or 'nothing'}"
    remote = [each["why"] for each in seen.offload["latest"] if each["remote"]]
    yield from (f"  {why}" for why in remote[:EXPLAINED])
