"""The operators' intents for requests: their class, their tenant, and the model that serves them.

    x-llm-d-inference-objective    name of an InferenceObjective, whose priority becomes a class
    x-llm-d-inference-fairness-id  the tenant, unless the header of ours names one
    x-llm-d-model-name-rewrite     model that serves the request; else an InferenceModelRewrite may name one

A priority is a number of classes above the default one (`router.gateway.priorities`): 0 without an objective,
negative for requests that may wait. A rewritten model is spliced into the body, and the answer names the one
that the client asked for.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from radix import NAME_CHARS_MAX
from router.errors import ClientError
from router.gateway.edits import members
from router.gateway.priorities import PRIORITY_HEADER
from router.offsets import edited
from router.picker.messages import FAIRNESS, MODEL_REWRITE, OBJECTIVE
from router.proxy import Header
from router.settings import Settings

PRIORITY_MAX = 999
"""Priorities beyond it, or below its negative, mean the same as it: there are some classes only."""

_encode, _decode_text = msgspec.json.Encoder().encode, msgspec.json.Decoder(str).decode


class Targets(NamedTuple):
    """Models that share the requests of one rule: their names, and their weights added up."""

    names: tuple[str, ...]
    weights: tuple[int, ...]

    def choose(self) -> str:
        """Return one of them by weight."""
        return random.choices(self.names, cum_weights=self.weights)[0]  # noqa: S311 - shares of traffic


def targets_of(weighted: Sequence[tuple[str, int]]) -> Targets:
    """Return targets with these weights; all weigh the same if one has none."""
    equal = any(weight <= 0 for _, weight in weighted)
    weights = tuple(accumulate(1 if equal else weight for _, weight in weighted))
    return Targets(tuple(name for name, _ in weighted), weights)


class Intents:
    """The intents that are known now; the pool's objects replace them (`router.picker.pool_objects`).

    Attributes:
        objectives: Priority by the name of the objective.
        rewrites: Targets by the model that a client asks for.
        otherwise: Targets of all other models; None to leave them.
    """

    def __init__(self, settings: Settings) -> None:
        self.objectives: Mapping[str, int] = {}
        self.rewrites: Mapping[str, Targets] = {}
        self.otherwise: Targets | None = None
        self._tenant_header = settings.tenancy.tenant_header.encode()
        self.use(settings)

    def use(self, settings: Settings) -> None:
        """Apply new settings to later requests."""
        self._sign = -1 if settings.queue.low_values_first else 1

    def headers(self, headers: Sequence[Header]) -> Sequence[Header]:
        """Return a request's headers with those that its intents imply, which win, before them."""
        implied: list[Header] = []
        named = False
        fairness = b""
        for name, value in headers:
            if name in OBJECTIVE:
                number = self.objectives.get(value.decode("latin-1"), 0)
                bounded = max(-PRIORITY_MAX, min(self._sign * number, PRIORITY_MAX))
                implied.append((PRIORITY_HEADER, b"%d" % bounded))
            elif name in FAIRNESS:
                fairness = value
            elif name == self._tenant_header:
                named = True
        if fairness and not named:
            implied.append((self._tenant_header, fairness))
        return (*implied, *headers) if implied else headers

    def rewritten(self, headers: Sequence[Header], body: bytes) -> tuple[bytes, tuple[bytes, bytes] | None]:
        """Return the body for the model that serves the request, and the names to exchange in its answer.

        The names are JSON: the one in the worker's answer, and the client's; None if nothing changes. A body
        that cannot be read passes, and is refused where it is parsed. Raises `ClientError` for a header with
        a name that is too long.
        """
        wanted = next((value.decode("latin-1") for name, value in headers if name in MODEL_REWRITE), "")
        if len(wanted) > NAME_CHARS_MAX:
            raise ClientError(
                f"The name of a model must have at most {NAME_CHARS_MAX} characters.", code="invalid_value"
            )
        if not wanted and not self.rewrites and self.otherwise is None:
            return body, None
        try:
            found = members(body, "model")
            asked = _decode_text(body[found[-1].start : found[-1].end]) if found else ""
        except (ValueError, RecursionError):
            return body, None
        if not wanted:
            targets = self.rewrites.get(asked, self.otherwise)
            wanted = asked if targets is None else targets.choose()
        if not found or wanted == asked:
            return body, None
        served = _encode(wanted)
        edits = [(member.start, member.end, served) for member in found]
        return b"".join(edited(body, edits)), (served, _encode(asked))
