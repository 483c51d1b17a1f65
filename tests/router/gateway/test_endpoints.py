import pytest

from router.gateway.endpoints import ENDPOINTS, PASSED_THROUGH, RELAYED, WITHOUT_CACHE, Endpoint


def test_an_endpoint_is_found_by_its_path() -> None:
    assert Endpoint("/v1/chat/completions") is Endpoint.CHAT
    assert ENDPOINTS[b"/v1/chat/completions"] is Endpoint.CHAT


@pytest.mark.parametrize("endpoint", Endpoint)
def test_only_apis_that_demand_a_model_need_one(endpoint: Endpoint) -> None:
    """OpenAI and Anthropic demand it; SGLang's own /generate and token or ranking calls do not."""
    demanding = {"chat/completions", "completions", "embeddings", "responses", "messages"}

    assert endpoint.needs_model == (endpoint.value.removeprefix("/v1/") in demanding)


def test_endpoints_without_a_cacheable_prompt_are_passed_through() -> None:
    prompted = {endpoint for endpoint in Endpoint if endpoint not in PASSED_THROUGH}

    own = {Endpoint.GENERATE, Endpoint.INVOCATIONS}
    assert prompted == {endpoint for endpoint in Endpoint if endpoint.needs_model} | own


def test_an_endpoint_has_a_json_body_or_is_relayed() -> None:
    assert set(ENDPOINTS.values()) | RELAYED == set(Endpoint)
    assert not set(ENDPOINTS.values()) & RELAYED


def test_what_fills_no_cache_has_no_prompt_to_match() -> None:
    assert WITHOUT_CACHE < PASSED_THROUGH
