from dataclasses import dataclass
from math import inf, nan

import pytest

from policies.scoring.options import checked_options, option


@dataclass(frozen=True, slots=True)
class Sample:
    share: float = option(0.3, high=1.0)
    factor: float = option(1.5, low=1.0)


def test_what_is_not_given_keeps_its_default() -> None:
    assert checked_options("p", Sample, {"factor": 2}) == Sample(share=0.3, factor=2)
    assert checked_options("p", None, {}) is None


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (Sample, {"shares": 1}, "policy 'p' has no option 'shares'; it has: factor, share"),
        (None, {"shares": 1}, "policy 'p' has no option 'shares'; it has: none"),
        (Sample, {"share": 1.1}, "option 'share' of policy 'p' must be between 0 and 1, not 1.1"),
        (Sample, {"factor": 0.5}, "option 'factor' of policy 'p' must be at least 1, not 0.5"),
        (Sample, {"factor": nan}, "option 'factor' of policy 'p' must be at least 1, not nan"),
        (Sample, {"factor": inf}, "option 'factor' of policy 'p' must be at least 1, not inf"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(
    kind: type[Sample] | None, values: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError) as refused:
        checked_options("p", kind, values)
    assert str(refused.value) == message
