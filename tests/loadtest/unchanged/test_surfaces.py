"""Surfaces for users are cut at their headings, so that a difference has a place."""

from loadtest.unchanged import surfaces


def test_pages_routes_and_settings_are_facts() -> None:
    found = surfaces.facts(counts_calls=False)

    assert "configuration reference, queue" in found
    assert "metrics reference, cacheway_requests_total" in found
    assert "cacheway config, queue" in found
    assert "openapi, /workers" in found
    assert not any(name.startswith("calls ") for name in found)
