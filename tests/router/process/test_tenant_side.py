"""Tenants, as the settings say."""

from pathlib import Path

from fakes.process import built


async def test_fairness_knows_the_weights_of_classes_and_tenants(tmp_path: Path) -> None:
    """Classes among classes, tenants within their class; who is not in the file weighs 1."""
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {acme: {weight: 3}}")
    process = await built(tenancy={"keys_file": str(file)}, queue={"classes": {"high": 8, "normal": 4}})
    weight_of = process.fleet.fairness.weight_of
    assert [weight_of(name) for name in ("high", "normal", "gone")] == [8, 4, 4]
    assert [weight_of(name) for name in ("high/acme", "normal/acme", "high/other", "high/")] == [3, 3, 1, 1]
    assert (await built()).fleet.fairness.weight_of("high/acme") == 1


async def test_without_files_nobody_has_limits_and_nothing_runs_for_tenants(tmp_path: Path) -> None:
    tenants = (await built()).tenants
    assert (tenants.keys, tenants.limiter, tenants.loops()) == (None, None, [])
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {acme: {weight: 3}}")
    tenants = (await built(tenancy={"keys_file": str(file)})).tenants
    assert tenants.limiter is not None
    assert [name for name, _ in tenants.loops()] == ["keys", "limits"]
