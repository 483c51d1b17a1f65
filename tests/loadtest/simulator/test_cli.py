"""``cacheway simulate`` from the trace to the page."""

import json
from pathlib import Path

import pytest
from fakes.traffic import write_trace

from loadtest.simulator import cli
from loadtest.simulator.cli import main
from policies import POLICIES


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_trace(tmp_path / "trace.jsonl"))


def test_policies_are_compared_in_a_table_a_document_and_a_page(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, page = tmp_path / "figures.json", tmp_path / "report.html"
    status = main(
        f"--trace {trace} --workers 2 --policy expected_cost,affinity:match_weight=2 "
        f"--json {figures} --report {page}".split()
    )

    assert status == 0
    shown = capsys.readouterr().out
    assert "120 requests, 2 × mimo-v2.5-pro" in shown
    document = json.loads(figures.read_text())
    assert [run["label"] for run in document["runs"]] == ["expected_cost", "affinity match_weight=2"]
    assert document["runs"][1]["policy_options"] == {"match_weight": 2.0}
    assert all(run["completed"] == 120 for run in document["runs"])
    assert document["config"]["workers"] == 2
    assert document["command"].startswith("cacheway simulate --trace ")
    assert document["command"] in page.read_text()


def test_the_same_command_gives_the_same_figures(trace: str, tmp_path: Path) -> None:
    """The figures differ in processor time only, for any number of jobs."""
    documents = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        main(["--trace", trace, "--policy", "lmetric,random", "--jobs", jobs, "--json", str(file)])
        documents.append([{**run, "cpu_s": None} for run in json.loads(file.read_text())["runs"]])

    assert documents[0] == documents[1]
    assert documents[0][0]["decisions_digest"] != documents[0][1]["decisions_digest"]


def test_every_argument_reaches_the_simulation(trace: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    main(
        f"--trace {trace} --policy least_load --json {file} --engine dense-70b --workers 3 "
        "--decode-workers 2 --decode-policy round_robin --replicas 2 --log-delay-ms 20 --block-tokens 512 "
        "--expected-output-tokens 64 --speed 2 --utilisation 0.5 --warmup-s 5 --seed 9 --host-tokens 4M "
        "--pool-tokens 64M --pool mooncake,write_policy=write_back --dialect vllm --no-dp-aware".split()
    )

    config = json.loads(file.read_text())["config"]
    assert config["host"]["host_tokens"] == 4 << 20
    assert config["host"]["write_policy"] == "write_back"
    assert config["l3"]["nodes"] * config["l3"]["memory_tokens"] == 64 << 20
    assert config["l3"]["kind"] == "pooled"
    engine = config.pop("engine")
    assert (engine["name"], engine["rules"]["match_rule"]) == ("dense-70b", "vllm")
    assert {name: config[name] for name in _GIVEN} == _GIVEN


_GIVEN = {
    "workers": 3,
    "dp_aware": False,
    "decode_workers": 2,
    "decode_policy": "round_robin",
    "replicas": 2,
    "log_delay_s": 0.02,
    "block_tokens": 512,
    "expected_output_tokens": 64,
    "speed": 2.0,
    "utilisation": 0.5,
    "warmup_s": 5.0,
    "seed": 9,
}


def test_a_linear_model_has_host_memory_and_a_page_has_rows_of_the_pool(trace: str, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    main(
        f"--trace {trace} --engine kimi-linear-1t --workers 2 --policy random --host-tokens 8M "
        f"--pool-tokens 64M --pool ttl_s=60 --report {page}".split()
    )

    text = page.read_text()
    assert "Pool: read by workers" in text
    assert "ttl_s=60" in text


def test_who_chooses_ranks_is_told_and_decides_what_is_found(trace: str, tmp_path: Path) -> None:
    """The engine with two ranks; unasked, the gateway chooses."""
    found = {}
    for flag, chooser in ("", "the gateway"), ("--dp-aware", "the gateway"), ("--no-dp-aware", "the engine"):
        file, page = tmp_path / f"{flag}.json", tmp_path / f"{flag}.html"
        assert (
            main(f"--trace {trace} --policy expected_cost --json {file} --report {page} {flag}".split()) == 0
        )
        assert f"2 data-parallel ranks, which {chooser} chooses" in page.read_text()
        found[flag] = json.loads(file.read_text())["runs"][0]["decisions_digest"]

    assert found[""] == found["--dp-aware"] != found["--no-dp-aware"]


def test_a_trace_that_is_none_is_a_sentence_and_status_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("hello\n")

    assert main(["--trace", str(wrong)]) == main(["--trace", str(tmp_path / "none")]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert all(error.startswith("cacheway simulate: ") for error in errors)
    assert "no known format" in errors[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "fastest"], "unknown policy 'fastest'"),
        (["--dialect", "vllm", "--host-tokens", "1M"], "not modelled for mimo-v2.5-pro by vllm's rules"),
        (["--pool", "gcache,ttl_s=5"], "give --host-tokens or --pool-tokens, too"),
        (["--pool", "ttl=5"], "unknown key 'ttl'"),
        (["--workers", "0"], "'0' is not a whole number"),
        (["--buckets", "64K=5,1M=2"], "--buckets has 7 workers and --workers 8"),
        (["--buckets", "64K"], "'64K' is not TOKENS=WORKERS"),
        (["--engine", "abacus"], "there is no engine 'abacus'"),
        (["--expert-parallel", "8"], "8 GPUs have 790 GB"),
        (["--expert-balance", "1.5"], "the expert balance must be 0.01 to 1"),
        (["--report", "no/such/folder/r.html"], "its folder does not exist"),
    ],
)
def test_a_wrong_command_line_is_status_two(
    arguments: list[str], says: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--trace", trace, *arguments])
    assert says in capsys.readouterr().err


def test_engines_and_policies_are_listed_without_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--list"])

    listed = capsys.readouterr().out
    assert all(f"  {name}" in listed for name in POLICIES)
    assert "  mooncake" in listed
    assert "write_policy" in listed
    assert "mimo-v2.5-pro" in listed
    assert "affinity: match_weight=1" in listed


def test_an_interrupt_is_no_traceback(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "read_workload", interrupted)

    assert main(["--trace", trace]) == 130


def test_buckets_are_simulated_and_told(trace: str, tmp_path: Path) -> None:
    figures, page = tmp_path / "figures.json", tmp_path / "report.html"
    arguments = f"--trace {trace} --workers 3 --policy least_load --json {figures} --report {page}"

    assert main([*arguments.split(), "--buckets", "16K=2,1M=1"]) == 0

    document = json.loads(figures.read_text())
    assert document["config"]["bucket_workers"] == [[16_384, 2], [1_048_576, 1]]
    assert document["runs"][0]["rejected"] == 0
    assert "0-16K: 2, 16K-1M: 1" in page.read_text()


def test_a_queue_is_described_on_the_command_line(trace: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    main(
        f"--trace {trace} --policy least_load --workers 1 --json {file} --queue-k 3 --queue-timeout-s 40 "
        "--ttft-slo-s 20 --ttft-slo-s-per-1k-tokens 0.5".split()
    )

    document = json.loads(file.read_text())
    queue = document["config"]["queue"]
    assert (queue["k"], queue["room"]["timeout_s"]) == (3.0, 40.0)
    assert (queue["level"]["ttft_slo_s"], queue["level"]["ttft_slo_s_per_1k_tokens"]) == (20.0, 0.5)
    assert "wait_max_s" in document["runs"][0]


def test_rejecting_early_needs_a_queue(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(f"--trace {trace} --ttft-slo-s 5".split())

    assert "--queue-k" in capsys.readouterr().err
