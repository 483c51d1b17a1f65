"""A quota keeps one tenant's prompts from pushing another's out of the caches, and serves both."""

import pytest

from loadtest.study import quotas


def test_a_quota_keeps_the_other_tenants_cache_and_costs_the_tenant_little() -> None:
    """A quarter of the space, first seed of the study (decision 0068); the limits leave room for chance."""
    workload = quotas.traffic(1)
    workload.check()
    free, limited = (quotas.served(workload, share, 1) for share in (1.0, 0.25))

    assert limited[quotas.AGENTS].hit_ratio > free[quotas.AGENTS].hit_ratio + 0.05
    assert limited[quotas.AGENTS].ttft_mean_s < 0.85 * free[quotas.AGENTS].ttft_mean_s
    assert limited[quotas.BULK].ttft_mean_s < 1.25 * free[quotas.BULK].ttft_mean_s


def test_every_seed_and_share_has_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quotas, "PROMPTS", 20)
    monkeypatch.setattr(quotas, "SESSIONS", 2)
    quotas.main(seeds=(1,))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["1", str(share)] for share in quotas.SHARES]
