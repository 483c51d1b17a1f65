import pytest

from router.gateway.endpoints import PASSED_THROUGH, Endpoint


def test_an_endpoint_is_found_by_its_path() -> None:
    assert Endpoint("/v1/chat/completions") is Endpoint.CHAT


@pytest.mark.parametrize("endpoint", Endpoint)
def test_only_apis_that_demand_a_model_need_one(endpoint: Endpoint) -> None:
    """OpenAI and Anthropic demand it; SGLang's own /generate and token or ranking calls do not."""
    demanding = {"chat/completions", "completions", "embeddings", "responses", "messages"}

    assert endpoint.needs_model == (endpoint.value.removeprefix("/v1/") in demanding)


def test_endpoints_without_a_cacheable_prompt_are_passed_through() -> None:
    prompted = {endpoint for endpoint in Endpoint if endpoint not in PASSED_THROUGH}

    assert prompted == {endpoint for endpoint in Endpoint if endpoint.needs_model} | {Endpoint.GENERATE}
