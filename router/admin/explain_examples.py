"""What ``POST /explain`` takes and gives, for its OpenAPI document: the route reads its body itself."""

from typing import Any

_CANDIDATE = {
    "worker": "10.0.0.8:30000",
    "rank": 2,
    "chosen": False,
    "cost": 1.53,
    "lost_because": "it would be 0.42 s later: 1.10 s of queue against 0.68 s of prefill "
    "(10,240 uncached tokens) saved",
    "matched_tokens": 12_288,
    "safe_tokens": 12_288,
    "uncached_tokens": 2048,
    "backlog_s": 1.1,
    "fetch_s": 0.0,
    "transfer_s": 0.0,
    "x_s": 0.43,
}

_REQUEST: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "endpoint": {
            "type": "string",
            "default": "/v1/chat/completions",
            "description": "Where the client would send the request.",
        },
        "request": {
            "type": "object",
            "description": "The body that the client would send. It goes nowhere.",
        },
        "tenant": {
            "type": "string",
            "maxLength": 256,
            "description": "Name of the tenant that it is decided for; empty for nobody in particular.",
        },
        "model": {
            "type": "string",
            "maxLength": 256,
            "description": "With block_hashes: the model that is asked for.",
        },
        "block_hashes": {
            "type": "array",
            "maxItems": 100_000,
            "items": {
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": (1 << 64) - 1},
                    {"type": "string", "pattern": "^[0-9a-fA-F]{1,16}$"},
                ]
            },
            "description": "In place of a request: the chained hashes of the prompt's blocks, as numbers or "
            "in hexadecimal.",
        },
        "kind": {
            "enum": ["text", "ids"],
            "default": "text",
            "description": "With block_hashes: whether blocks are of text or of token ids.",
        },
        "prompt_tokens": {
            "type": "integer",
            "minimum": 0,
            "maximum": 1 << 40,
            "description": "With block_hashes: length of the prompt; left out, that of its blocks.",
        },
        "output_tokens": {
            "type": "integer",
            "minimum": 0,
            "maximum": 1 << 40,
            "description": "With block_hashes: most tokens of the answer.",
        },
        "policy": {
            "type": "string",
            "description": "Another policy to decide by; left out, the one in use.",
        },
        "policy_options": {
            "type": "object",
            "additionalProperties": {"type": "number"},
            "description": "Options of that policy.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
            "default": 50,
            "description": "Most candidates, and most others, that are listed; the rest is counted.",
        },
    },
    "oneOf": [{"required": ["request"]}, {"required": ["block_hashes"]}],
}

EXPLAIN_DOCS: dict[str, Any] = {
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": _REQUEST,
                    "examples": {
                        "request": {
                            "value": {
                                "endpoint": "/v1/chat/completions",
                                "request": {
                                    "model": "m",
                                    "messages": [{"role": "user", "content": "Hello"}],
                                },
                            }
                        },
                        "hashes": {
                            "value": {
                                "model": "m",
                                "block_hashes": ["91f3c05a7be2d844", "0c11d0a9b3e4f570"],
                                "prompt_tokens": 700,
                                "policy": "least_load",
                            }
                        },
                    },
                }
            },
        }
    },
    "responses": {
        200: {
            "description": "The decision, all candidates and all others.",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["decision", "policy", "request", "candidates", "not_candidates"],
                    },
                    "example": {
                        "decision": {
                            "outcome": "place",
                            "reason": "affinity",
                            "why": "10.0.0.7:30000 is the policy's choice: 0.43 s to the first token",
                            "worker": "10.0.0.7:30000",
                        },
                        "policy": {"name": "expected_cost", "unit": "seconds", "lowest_wins": True},
                        "candidates": [_CANDIDATE],
                        "not_candidates": [
                            {
                                "worker": "10.0.0.9:30000",
                                "reason": "draining",
                                "detail": "it takes no new requests until it is put back in service",
                            }
                        ],
                    },
                }
            },
        },
        400: {"description": "The question, or the request in it, makes no sense."},
        413: {"description": "The body is longer than clients may send."},
    },
}
