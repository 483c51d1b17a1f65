"""The report names the simulated settings in words, and nothing in Python's notation."""

import re
from dataclasses import replace

from loadtest.engine.kv.l3 import L3Settings
from loadtest.engine.kv.tiers import HiCacheSettings
from loadtest.engine.parallelism import Parallelism
from loadtest.engine.profiles import PROFILES, make_profile
from loadtest.simulator.queueing import QueueRules
from loadtest.simulator.setting_words import gpus_in_words, settings_in_words
from loadtest.simulator.simulation import SimulationConfig
from loadtest.simulator.workload import Session, SimRequest, Workload
from policies import ServiceLevel

WORKLOAD = Workload("one", (Session(0.0, (SimRequest(b"", 10, 5),)),), notes="drawn by hand")
PLAIN = SimulationConfig(engine=PROFILES["mimo-v2.5-pro"])
ALL = replace(
    PLAIN,
    workers=7,
    bucket_workers=((65_536, 5), (1_048_576, 2)),
    decode_workers=3,
    replicas=2,
    speed=2.0,
    utilisation=0.8,
    warmup_s=60.0,
    host=HiCacheSettings(host_tokens=1_000, write_policy="write_back"),
    l3=L3Settings(disk_tokens=5, ttl_s=600.0),
    queue=QueueRules(k=4.0, level=ServiceLevel(3.0)),
)


def test_no_setting_is_told_in_python() -> None:
    for config in (PLAIN, ALL, replace(PLAIN, host=HiCacheSettings(), queue=QueueRules(k=0.0))):
        told = settings_in_words(config, WORKLOAD)
        assert not [
            name for name, text in told.items() if re.search(r"[{}()=]|None|True|False|\w_\w+_", text)
        ]


def test_what_was_chosen_is_told() -> None:
    told = settings_in_words(ALL, WORKLOAD)
    assert told["arrivals"].startswith("open loop, at the recorded times, 2 times as fast; prefill is slowed")
    assert "7 workers for prefill, 3 for decode" in told["fleet"]
    assert "by length of requests: 0-64K: 5" in told["fleet"]
    assert (
        told["host memory"]
        == "2,000 tokens of a worker, written by write back, fetched from the pool by timeout"
    )
    assert "blocks live for 600\N{NO-BREAK SPACE}s after their last use" in told["shared pool"]
    assert told["gateway"].startswith("2 replicas, which hear of each other after")
    assert "rejected" in told["queue"]
    assert told["figures"] == "requests that come after 60.0\N{NO-BREAK SPACE}s"
    assert "2 data-parallel ranks, which the gateway chooses" in told["engine"]
    assert settings_in_words(PLAIN, WORKLOAD)["queue"].startswith("none in the gateway")


def test_gpus_are_told_with_their_division_if_it_was_chosen() -> None:
    assert gpus_in_words(PROFILES["mimo-v2-flash"]) == "8 GPUs for each worker"
    divided = make_profile("mimo-v2-flash", Parallelism(expert_parallel=4))
    assert gpus_in_words(divided).startswith("4 GPUs for each worker: expert parallel 4")
