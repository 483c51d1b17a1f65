"""What does not work, in sentences."""

from pathlib import Path

from fakes.process import built


async def test_each_trouble_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {acme: {weight: 3}}")
    process = await built(fleet={"worker_urls": ["http://a:1"]}, tenancy={"keys_file": str(file)})
    assert "1 of 1 workers are not healthy" in process.degraded()
    (local,) = process.registry.all()
    process.registry.probed(local, ok=True, refused=False, detail="")
    assert not any("workers" in each for each in process.degraded())
    assert process.tenants.keys is not None
    process.tenants.keys.problem = "is not YAML"
    assert any("the file of keys cannot be used" in each for each in process.degraded())
