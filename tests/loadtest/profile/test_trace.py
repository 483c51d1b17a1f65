"""A profile fitted to a request trace gives back the engine that the traffic ran on."""

import base64
import json
import random
from pathlib import Path

import pytest

from loadtest.profile.engine_file import Cache, Decode, EngineFile, EngineFileError, Prefill, build_engine
from loadtest.profile.trace import calibrate, capacity_of, read_lines
from loadtest.simulator.simulation import SimulationConfig, simulate
from loadtest.simulator.workload import Session, SimRequest, Workload
from loadtest.traces import TraceError
from radix import chain_bytes, root_hash

BLOCK = 64

ENGINE = EngineFile(
    name="known",
    prefill=Prefill(tokens_per_s=20_000, context_doubling_tokens=60_000, prompt_s=0.03),
    decode=Decode(step_s=0.02, request_s=0.0005, context_token_s=2e-8),
    cache=Cache(tokens=600_000),
    chunk_tokens=0,
    interleave="apart",
)


def conversations(count: int, turns: int, gap_s: float, seed: int = 1) -> list[tuple[float, SimRequest]]:
    """Prompts that grow turn by turn, at times that nothing delays."""
    draw = random.Random(seed)
    rows: list[tuple[float, SimRequest]] = []
    for number in range(count):
        at_s, tokens = draw.uniform(0, 200), draw.randrange(2_000, 20_000)
        for _ in range(turns):
            text = b"".join(
                (number * 1_000_000 + block).to_bytes(8, "little") for block in range(tokens // BLOCK)
            )
            path = chain_bytes(text, root_hash(1, b"x"), 8)
            rows.append((at_s, SimRequest(path, tokens, draw.randrange(20, 120))))
            at_s += draw.expovariate(1 / gap_s)
            tokens += draw.randrange(500, 6_000)
    return sorted(rows, key=lambda row: row[0])


def traced(path: Path, rows: list[tuple[float, SimRequest]], engine: EngineFile, workers: int = 2) -> Path:
    """Run the traffic in virtual time, and write it as a gateway does."""
    sessions = tuple(Session(at_s, (request,)) for at_s, request in rows)
    config = SimulationConfig(engine=build_engine(engine).profile, workers=workers)
    found = simulate(Workload("known", sessions), config).records
    with path.open("w") as out:
        for row, (_, request) in enumerate(rows):
            line = {
                "arrived_unix_s": 1.7e9 + float(found.arrival_s[row]),
                "duration_s": float(found.finished_s[row] - found.arrival_s[row]),
                "ttft_s": float(found.first_s[row] - found.arrival_s[row]),
                "status": 200,
                "outcome": "completed",
                "stream": True,
                "prompt_tokens": int(found.prompt_tokens[row]),
                "estimated": False,
                "output_tokens": int(found.output_tokens[row]),
                "cached_tokens": int(found.reused_tokens[row]),
                "worker_id": f"w{found.worker[row]}",
                "attempts": 1,
                "prompt_blocks": request.tokens / BLOCK,
                "blocks": base64.b64encode(request.blocks).decode(),
            }
            out.write(json.dumps(line) + "\n")
    return path


def test_a_busy_fleet_gives_back_its_engine(tmp_path: Path) -> None:
    rows = conversations(120, 8, 60.0)
    given = calibrate(read_lines(traced(tmp_path / "trace.jsonl", rows, ENGINE)), "fitted")

    assert given.prefill.tokens_per_s == pytest.approx(20_000, rel=0.05)
    assert given.prefill.context_doubling_tokens == pytest.approx(60_000, rel=0.15)
    assert given.prefill.prompt_s == pytest.approx(0.03, rel=0.2)
    assert given.decode.step_s == pytest.approx(0.02, rel=0.1)
    assert given.decode.request_s == pytest.approx(0.0005, rel=0.5)
    assert given.cache.tokens == pytest.approx(600_000, rel=0.2)
    assert "confidence: good" in given.notes[0]
    assert any("hits and evictions of 2 workers" in note for note in given.notes)


@pytest.mark.parametrize("tokens", [400_000, 50_000_000])
def test_capacity_is_a_lower_bound_where_nothing_was_evicted(tmp_path: Path, tokens: int) -> None:
    """Prompts of more than 400,000 tokens come; each conversation is over before its blocks could go."""
    roomy = ENGINE.model_copy(update={"cache": Cache(tokens=tokens)})
    lines = read_lines(traced(tmp_path / "trace.jsonl", conversations(20, 6, 4.0), roomy, workers=1))
    found = capacity_of(lines)
    assert found is not None
    assert not found.evicts
    assert 30_000 < found.tokens <= 400_000
    given = calibrate(lines, "fitted")
    assert any("at least" in note and "confidence: poor" in note for note in given.notes)


def test_a_trace_without_counts_says_what_is_missing(tmp_path: Path) -> None:
    path = traced(tmp_path / "trace.jsonl", conversations(5, 3, 30.0), ENGINE)
    blind = [json.loads(line) | {"cached_tokens": None} for line in path.read_text().splitlines()]
    path.write_text("\n".join(map(json.dumps, blind)))
    with pytest.raises(EngineFileError, match="--enable-cache-report"):
        calibrate(read_lines(path), "fitted")


def test_short_prompts_tell_a_capacity_too(tmp_path: Path) -> None:
    """An engine with a context of 4,096 tokens has no match of 2,048 tokens or more."""
    rows = [
        (60.0 * number, SimRequest(request.blocks[: 8 * 24], 24 * BLOCK + 10, 20))
        for number, (_, request) in enumerate(conversations(8, 4, gap_s=30.0))
    ]
    lines = read_lines(traced(tmp_path / "trace.jsonl", rows, ENGINE, workers=1))
    found = capacity_of(lines)
    assert found is not None
    assert not found.evicts


def test_a_trace_without_repeated_prompts_says_so(tmp_path: Path) -> None:
    """It has the engine's counts: the engine lacks no flag."""
    rows = [(60.0 * number, request) for number, (_, request) in enumerate(conversations(60, 1, gap_s=30.0))]
    lines = read_lines(traced(tmp_path / "trace.jsonl", rows, ENGINE, workers=1))
    with pytest.raises(EngineFileError, match=r"KV capacity \(prompts of a block or more that begin"):
        calibrate(lines, "x")


@pytest.mark.parametrize("text", ["", "not json\n", '{"timestamp": 3}\n'])
def test_another_file_is_no_trace(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace.jsonl").write_text(text)
    with pytest.raises(TraceError, match="no request trace of a gateway"):
        read_lines(tmp_path / "trace.jsonl")
