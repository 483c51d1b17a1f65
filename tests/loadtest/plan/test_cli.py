"""``cacheway plan`` from the trace to the plan."""

import json
from pathlib import Path

import pytest
from fakes.traffic import write_trace

from loadtest.plan.cli import main


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(write_trace(tmp_path / "trace.jsonl", requests=300))


def test_a_plan_is_printed_written_and_drawn(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, page, curve = tmp_path / "plan.json", tmp_path / "plan.html", tmp_path / "curve.png"
    status = main(
        f"--trace {trace} --engine dense-70b --ttft-p90-s 2 --seeds 2 --split no --worker-price 30 "
        f"--policy expected_cost,random --json {figures} --report {page} --curve {curve}".split()
    )

    assert status == 0
    document = json.loads(figures.read_text())
    best = document["fleets"][0]
    assert best["policy"] == "expected_cost"
    assert [seed["ttft_p90_s"] <= 2.0 for seed in best["seeds"]] == [True, True]
    fewer = next(step for step in document["steps"] if step["change"] == "a worker less")
    assert fewer["workers"] == best["workers"] - 1
    assert any(seed["ttft_p90_s"] > 2.0 for seed in fewer["seeds"])
    assert document["curve"]["hit_ratios"] == sorted(document["curve"]["hit_ratios"])
    tiers = document["tiers"]
    assert tiers["workers"] == best["workers"]
    assert tiers["ttl"]["hit_ratios"] == sorted(tiers["ttl"]["hit_ratios"])
    assert tiers["pool"]["hit_ratios"][-1] > 0.99 * tiers["infinite_hit_ratio"]
    assert document["layers"]["limit"] == 1.0
    shown = capsys.readouterr().out
    assert f"The plan: expected_cost on {best['workers']} workers" in shown
    assert f"at {30 * best['workers']}.00 per hour" in shown
    assert "How sure" in shown
    assert document["command"].replace("'", "&#x27;") in page.read_text()
    assert curve.read_bytes().startswith(b"\x89PNG")


def test_a_plan_prices_parallelism_by_the_gpu_and_names_it(trace: str, tmp_path: Path) -> None:
    """4 of the profile's 8 GPUs cost half of a worker."""
    figures, page = tmp_path / "plan.json", tmp_path / "plan.html"
    status = main(
        f"--trace {trace} --engine mimo-v2-flash --expert-parallel 4 --numa-balancing --no-prefill-mtp "
        f"--ttft-p90-s 9 --seeds 1 --split no --policy expected_cost --host-gib 0 --pool-gib 0 --jobs 1 "
        f"--worker-price 30 --json {figures} --report {page}".split()
    )

    assert status == 0
    document = json.loads(figures.read_text())
    assert document["prices"]["worker"] == 15.0
    told = "4 GPUs for each worker: expert parallel 4, pipeline stages 1, expert balance 0.85, NUMA"
    assert any(told in sentence for sentence in document["assumptions"])
    assert any("costs 30 per hour" in sentence for sentence in document["assumptions"])
    assert "expert parallel 4" in page.read_text()


def test_a_plan_for_an_engine_that_cannot_be_is_refused(trace: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(f"--trace {trace} --engine dense-70b --expert-parallel 4 --ttft-p90-s 9".split())


@pytest.mark.deep
def test_the_same_command_gives_the_same_plan(trace: str, tmp_path: Path) -> None:
    plans = []
    for jobs in (1, 2):
        file = tmp_path / f"{jobs}.json"
        main(f"--trace {trace} --ttft-p90-s 1 --engine dense-70b --jobs {jobs} --json {file}".split())
        document = json.loads(file.read_text())
        for fleet in (*document["fleets"], *document["steps"]):
            for seed in fleet["seeds"]:
                seed.pop("cpu_s")
        plans.append({**document, "command": None})

    assert plans[0] == plans[1]


def test_a_histogram_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths, file = tmp_path / "lengths.csv", tmp_path / "plan.json"
    lengths.write_text("prompt_tokens,count\n2000,80\n20000,20\n")
    status = main(
        f"--lengths {lengths} --hit-ratio 0.5 --rate 4 --requests-max 300 --engine dense-70b "
        f"--ttft-p90-s 2 --split no --seeds 1 --policy expected_cost --json {file}".split()
    )

    assert status == 0
    assert "The histogram says nothing about prefixes and arrivals." in " ".join(
        json.loads(file.read_text())["assumptions"]
    )
    assert json.loads(file.read_text())["curve"]["infinite_hit_ratio"] == pytest.approx(0.5, abs=0.03)
    assert "drawn from a histogram" in " ".join(capsys.readouterr().out.split())


def test_a_limit_below_the_floor_is_refused_before_any_simulation(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"--trace {trace} --ttft-p90-s 0.01".split()) == 1

    seen = capsys.readouterr()
    assert "with infinite caches and no queue the TTFT P90" in seen.err
    assert seen.out == ""


def test_a_load_beyond_all_workers_is_refused(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = f"--trace {trace} --engine dense-70b --ttft-p90-s 9 --speed 500 --workers-max 2"

    assert main(arguments.split()) == 1
    assert "raise --workers-max" in capsys.readouterr().err


def test_no_fleet_that_holds_is_status_one_with_the_closest(
    trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = f"--trace {trace} --engine dense-70b --ttft-p90-s 9 --tpot-p90-s 0.000001 --workers-max 3"

    assert main([*arguments.split(), "--policy", "random", "--split", "no"]) == 1
    assert "No fleet that was tried holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", "--ttft-p90-s"),
        ("--ttft-p90-s 1 --lengths l.csv", "--lengths needs --hit-ratio and --rate"),
        ("--ttft-p90-s 0", "'0' is not a number above 0"),
    ],
)
def test_a_wrong_command_line_is_status_two(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert says in capsys.readouterr().err


@pytest.mark.deep
def test_memory_is_bought_where_it_is_cheaper_than_workers(tmp_path: Path) -> None:
    """120 prompts of 60,000 tokens in turn: six devices hold them, or the host memory of one worker."""
    turns = [8_000 * number for number in range(120)]
    turns += [turns[-1] + 1_000 * number for number in range(1, 241)]
    rows = [
        {
            "timestamp": at_ms,
            "input_length": 60_000,
            "output_length": 2,
            "hash_ids": list(range(number % 120 * 118, number % 120 * 118 + 118)),
        }
        for number, at_ms in enumerate(turns)
    ]
    trace, file = tmp_path / "turns.jsonl", tmp_path / "plan.json"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bought = {}
    for price in ("0.0001", "10"):
        status = main(
            f"--trace {trace} --engine dense-70b --ttft-p90-s 8 --warmup-s 955 --split no --seeds 1 "
            f"--policy expected_cost --host-gib 0,4096 --pool-gib 0 --host-gib-price {price} "
            f"--worker-price 25 --json {file}".split()
        )
        assert status == 0
        best = json.loads(file.read_text())["fleets"][0]
        bought[price] = best["host_gib"], best["workers"]

    assert bought["0.0001"][0] == 4096.0
    assert bought["10"][0] == 0.0
    assert bought["0.0001"][1] < bought["10"][1]


def test_an_engine_without_lower_tiers_is_planned_without_them(trace: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    arguments = f"--trace {trace} --engine mimo-v2.5-pro --dialect vllm --ttft-p90-s 9 --seeds 1 --split no "
    arguments += f"--policy expected_cost --json {file}"

    assert main(arguments.split()) == 0
    assert json.loads(file.read_text())["fleets"][0]["host_gib"] == 0.0


def test_what_the_layers_of_a_model_of_the_users_save_is_told(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    config = {"num_hidden_layers": 70, "num_attention_heads": 8, "head_dim": 64, "sliding_window": 128}
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window_pattern": 7}))
    arguments = (
        f"--trace {trace} --engine dense-70b --ttft-p90-s 9 --seeds 1 --split no --host-gib 0 --pool-gib 0 "
    )
    arguments += f"--policy expected_cost --pool ttl_s=60 --model {folder / 'config.json'}"

    assert main(arguments.split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Of mine 10 of 70 layers keep every token, 60 the last 128" in shown
    assert "7.0 times as many" in shown


@pytest.mark.parametrize("buckets", [pytest.param("", marks=pytest.mark.deep), "--buckets"])
def test_divisions_by_length_are_tried_if_asked_for_and_what_came_of_them_is_said(
    buckets: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt in twelve is long. With two workers of their own the others wait less, for the same price."""
    lengths, file, page = tmp_path / "lengths.csv", tmp_path / "plan.json", tmp_path / "plan.html"
    lengths.write_text("prompt_tokens,count\n2000,92\n150000,8\n")
    status = main(
        f"--lengths {lengths} --hit-ratio 0.2 --rate 1 --requests-max 300 --engine dense-70b {buckets} "
        f"--ttft-p90-s 3 --split no --seeds 1 --policy expected_cost --host-gib 0 --pool-gib 0 --json {file} "
        f"--report {page}".split()
    )

    assert status == 0
    document = json.loads(file.read_text())
    shown = " ".join(capsys.readouterr().out.split())
    whole = next(fleet for fleet in document["fleets"] if not fleet["bucket_workers"])
    if not buckets:
        assert document["fleets"][0] == whole
        assert document["buckets"] == []
        assert "Length buckets" not in shown + page.read_text()
        return
    divided = next(fleet for fleet in document["fleets"] if fleet["bucket_workers"])
    assert divided["bucket_workers"] == [[65_536, 1], [262_144, 2]]
    assert divided["workers"] == whole["workers"]
    assert document["buckets"][1].startswith("0-64K, 64K-256K: not kept; ")
    assert document["buckets"][0] in shown
    assert document["buckets"][0] in page.read_text()
