"""Arguments have their documented meaning; others are refused with a sentence."""

import argparse
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest
from fakes.traffic import write_trace

from loadtest.simulator.arguments import (
    DEFAULT_ENGINE,
    ChosenEngine,
    add_engine,
    add_workload,
    bucket_workers,
    count,
    count_or_none,
    engine_of,
    new_file,
    not_negative,
    positive,
    read_options,
    read_workload,
    share,
    sizes,
    window,
)
from loadtest.simulator.readers import ALL


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (count, "7", 7),
        (count, "64K", 65_536),
        (count, "2m", 2_097_152),
        (count, "10,000", 10_000),
        (count_or_none, "0", 0),
        (positive, "0.5", 0.5),
        (not_negative, "0", 0.0),
        (share, "0.8", 0.8),
        (window, "10:60", (10.0, 60.0)),
        (window, ":60", (0.0, 60.0)),
        (window, "10:", (10.0, inf)),
    ],
)
def test_numbers_are_read(kind: Callable[[str], Any], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (count, ["0", "-1", "1.5", "", "K", "many"]),
        (count_or_none, ["-1", "x"]),
        (positive, ["0", "-1", "inf", "nan", "x"]),
        (not_negative, ["-0.1", "inf", "nan"]),
        (share, ["0", "1", "80", "nan"]),
        (window, ["60", "60:10", "-1:5", "a:b", "5:5", "nan:5"]),
    ],
)
def test_nonsense_is_refused_and_named(kind: Callable[[str], Any], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}'"):
            kind(text)


def test_a_file_that_could_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    assert new_file(str(tmp_path / "new.html")) == tmp_path / "new.html"
    for wrong in (tmp_path, tmp_path / "none" / "new.html"):
        with pytest.raises(argparse.ArgumentTypeError, match="cannot write"):
            new_file(str(wrong))


def test_without_arguments_the_whole_trace_is_taken(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_workload(parser)
    trace = write_trace(tmp_path / "trace.jsonl")

    options = parser.parse_args(["--trace", str(trace)])

    assert read_options(options) == ALL
    assert read_workload(options).request_count == 120


def test_a_window_and_a_limit_cut_the_trace(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_workload(parser)
    trace = str(write_trace(tmp_path / "trace.jsonl"))

    half = read_workload(parser.parse_args(["--trace", trace, "--window", "0:60"]))
    few = read_workload(parser.parse_args(["--trace", trace, "--requests-max", "7"]))

    assert half.request_count == 60
    assert few.request_count == 7


def test_without_a_trace_sessions_are_drawn_from_the_seed() -> None:
    parser = argparse.ArgumentParser()
    add_workload(parser)

    few = read_workload(parser.parse_args(["--users", "3", "--sessions", "4", "--requests-max", "20"]))
    same = read_workload(parser.parse_args(["--users", "3", "--sessions", "4", "--requests-max", "20"]))
    other = read_workload(
        parser.parse_args(["--users", "3", "--sessions", "4", "--requests-max", "20", "--seed", "2"])
    )

    assert few.users == 3
    assert few.request_count == 20
    assert few == same
    assert few.sessions != other.sessions


def test_sizes_are_ascending_and_each_there_once() -> None:
    assert sizes("1024,0,512,0") == [0.0, 512.0, 1024.0]
    with pytest.raises(argparse.ArgumentTypeError, match="'much'"):
        sizes("0,much")


def test_buckets_are_bounds_and_their_workers() -> None:
    assert bucket_workers("64K=5, 256K=2,1M=1") == ((65_536, 5), (262_144, 2), (1_048_576, 1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("64K", "'64K' is not TOKENS=WORKERS"),
        ("64K=0", "'0' is not a whole number of at least 1"),
        ("much=2", "'much' is not a whole number"),
        ("", "'' is not TOKENS=WORKERS"),
        ("256K=1,64K=1", "bounds of length buckets must ascend"),
        ("64K=1,64K=1", "bounds of length buckets must ascend"),
    ],
)
def test_buckets_that_are_none_are_refused(text: str, says: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        bucket_workers(text)


def chosen(*words: str) -> ChosenEngine:
    parser = argparse.ArgumentParser()
    add_engine(parser)
    return engine_of(parser.parse_args(words))


def test_an_engine_is_a_name_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    path.write_text(
        "dialect: vllm\nprefill: {tokens_per_s: 9000}\ndecode: {step_s: 0.02}\n"
        "cache: {tokens: 90000, block_tokens: 16}\ngpus: 2\nprices: {worker: 7}\n"
    )
    own = chosen("--engine", str(path))
    assert own.given is not None
    assert (own.profile.rules.match_rule, own.profile_gpus, own.given.prices.worker) == ("vllm", 2, 7)
    assert own.profile.rules.block_tokens == 64, "workloads come in blocks of 64 tokens"
    assert chosen("--engine", str(path), "--dialect", "sglang").profile.rules.match_rule == "sglang"
    named = chosen("--engine", "mimo-v2-flash", "--expert-parallel", "4")
    assert (named.profile.gpus, named.profile_gpus, named.given) == (4, 8, None)
    assert chosen().profile.name == DEFAULT_ENGINE


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--engine mimo-v2-flas", "did you mean mimo-v2-flash"),
        ("--engine none.yaml", "cannot be read"),
        ("--engine from-metrics", "takes the URL of one engine"),
        ("--engine from-metrics 10.0.0.7", "is no URL of an engine"),
        ("--engine mimo-v2-flash dense-70b", "takes one name or file, not 2"),
        ("--engine none.yaml --expert-parallel 4", "leave out --expert-parallel"),
    ],
)
def test_what_is_no_engine_is_refused(words: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        chosen(*words.split())
