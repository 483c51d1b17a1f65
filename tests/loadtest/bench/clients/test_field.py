"""Command lines of the clients, and the reading of their reports: short extracts of real ones."""

import json
import shutil
from pathlib import Path

import pytest

from loadtest.bench.clients.aiperf import BLOCK_TOKENS, SESSIONS, trace_rows
from loadtest.bench.clients.client import Load, Report, ReportUnreadable
from loadtest.bench.clients.field import CLIENTS

REPORTS = Path(__file__).parent / "reports"
LOAD = Load("http://127.0.0.1:30000", "tiny", Path("/models/tiny"), requests=24, concurrency=3, seed=7)

READ = {
    "vllm-bench": Report(24, 0, 0.1427, 0.0974, 0.2897, prompt_tokens=9507, output_tokens=384),
    "guidellm": Report(10, 0, 0.1536, 0.1416, 0.2549, 2680, 320, 160),
    "aiperf": Report(5, 0, 0.2606, 0.2707, 0.3047, 5060, 2624, 40),
    "inference-perf": Report(20, 0, 0.2611, 0.2211, 0.4392, 5200, 4224, 160),
    "locust": Report(12, 0, 0.1491),
    "openai-sdk": Report(30, 0, 0.1974, 0.1298, 0.5212, 16536, 4480, 480),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_clients_report_is_read(name: str) -> None:
    report, wanted = CLIENTS[name].read(REPORTS), READ[name]
    for field in Report.__dataclass_fields__:
        assert getattr(report, field) == pytest.approx(getattr(wanted, field), abs=1e-4), field


@pytest.mark.parametrize("name", CLIENTS)
def test_a_report_that_is_not_there_or_not_as_it_was_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ReportUnreadable):
        CLIENTS[name].read(tmp_path)
    shutil.copytree(REPORTS, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.rglob("*.*"):
        path.write_text('{"completed": "all"}' if path.suffix == ".json" else "Type,Name\n")
    with pytest.raises(ReportUnreadable, match=r"_stats\.csv|\.json"):
        CLIENTS[name].read(tmp_path)


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_is_told_where_to_send_and_where_to_write(name: str, tmp_path: Path) -> None:
    command = CLIENTS[name].command(Path("/bin/program"), LOAD, tmp_path)
    assert "/bin/program" in command[:3]
    said = " ".join(command) + "".join(path.read_text() for path in tmp_path.iterdir() if path.is_file())
    assert LOAD.url in said
    assert LOAD.model in said
    assert str(tmp_path) in said


def test_a_trace_repeats_what_came_before_and_every_hash_has_one_length(tmp_path: Path) -> None:
    """Mooncake's format: a hash id stands for 512 tokens, and for fewer at the end of a prompt only."""
    CLIENTS["aiperf"].command(Path("aiperf"), LOAD, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "mooncake.jsonl").read_text().splitlines()]
    assert rows == trace_rows(LOAD)
    assert len(rows) == LOAD.requests
    tails = [row["hash_ids"][-1] for row in rows]
    assert len(set(tails)) == len(tails)
    for row in rows:
        *whole, tail = row["hash_ids"]
        assert 0 < row["input_length"] - BLOCK_TOKENS * len(whole) <= BLOCK_TOKENS
        assert tail not in {each for other in rows for each in other["hash_ids"][:-1]}
    first, second = rows[0], rows[SESSIONS]
    assert second["hash_ids"][: len(first["hash_ids"]) - 1] == first["hash_ids"][:-1]
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)
