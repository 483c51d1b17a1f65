"""A few failures are measured, and the status says whether a leg ended too late."""

import pytest

from loadtest.bench import pairs


@pytest.mark.deep
async def test_the_other_leg_of_each_failure_is_timed() -> None:
    took_s = await pairs.measure("mooncake", 2)
    assert list(took_s) == list(pairs.FAILURES)
    assert all(len(times) == 2 and times[0] > 0 for times in took_s.values())


@pytest.mark.parametrize(("longest_s", "status"), [(0.09, 0), (0.11, 1)])
def test_a_leg_that_ends_too_late_is_a_failure(
    longest_s: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measure(protocol: str, times: int) -> dict[str, list[float]]:
        assert (protocol, times) == ("nixl", 3)
        return {"client leaves": [0.004, longest_s]}

    monkeypatch.setattr(pairs, "measure", measure)
    monkeypatch.setattr("sys.argv", ["pairs", "--failures", "--protocol", "nixl", "--times", "3"])
    assert pairs.main() == status
    text = capsys.readouterr().out
    assert f"4 ms / {longest_s * 1e3:.0f} ms" in text
    assert "one leg at a time" in text
