import json
from typing import Any

import pytest

from loadtest.engine.errors import error_body
from loadtest.engine.settings import Dialect


@pytest.mark.parametrize(
    ("dialect", "native", "body"),
    [
        ("vllm", False, {"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}}),
        (
            "sglang",
            False,
            {"object": "error", "message": "no", "type": "BadRequestError", "param": "n", "code": 400},
        ),
        ("sglang", True, {"error": {"message": "no"}}),
    ],
)
def test_errors_have_the_shape_of_the_dialect(dialect: Dialect, native: bool, body: Any) -> None:
    assert json.loads(error_body(dialect, 400, "no", param="n", native=native)) == body


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_vllm_answers_anthropics_clients_in_their_shape(path: str) -> None:
    """Seen with vLLM 0.32: the type is vLLM's own, in the envelope of Anthropic."""
    assert json.loads(error_body("vllm", 404, "no", param="model", path=path)) == {
        "type": "error",
        "error": {"type": "NotFoundError", "message": "no"},
    }
