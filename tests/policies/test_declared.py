"""Settings are declared beside the code that reads them, and judged where they come in."""

from dataclasses import dataclass

import pytest
from pydantic import TypeAdapter, ValidationError

from policies import setting


@dataclass(frozen=True)
class Limits:
    wait_s_max: float = setting(30.0, "Longest wait, in seconds.", gt=0)


def test_a_part_gets_a_plain_dataclass_with_the_default() -> None:
    assert Limits() == Limits(wait_s_max=30.0)


def test_what_users_give_is_held_to_the_limits_of_the_declaration() -> None:
    judged = TypeAdapter(Limits)
    assert judged.validate_python({"wait_s_max": "1.5"}) == Limits(wait_s_max=1.5)
    with pytest.raises(ValidationError, match="greater than 0"):
        judged.validate_python({"wait_s_max": 0})
