"""Users of a preset over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.locusts.presets import PRESETS, users_at


@pytest.mark.parametrize(
    ("name", "users"),
    [
        ("smoke", [10, 10, 10, 10]),
        ("steady", [28, 50, 50, 50]),
        ("spike", [8, 8, 40, 8]),
        ("soak", [16, 30, 30, 30]),
        ("overload", [20, 200, 200, 20]),
    ],
)
def test_a_preset_has_its_shape(name: str, users: list[int]) -> None:
    """At 5, 30, 50 and 90 % of the run."""
    preset = PRESETS[name]
    seen = [
        users_at(preset, share * preset.run_s, preset.users, preset.run_s) for share in (0.05, 0.3, 0.5, 0.9)
    ]
    assert seen == users


def test_a_smoke_test_takes_a_minute() -> None:
    assert PRESETS["smoke"].run_s == 60.0


@given(
    st.sampled_from(sorted(PRESETS)),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 10_000),
    st.floats(1, 1e6),
)
def test_a_run_has_users_until_it_ends_and_never_more_than_asked_for(
    name: str, at: float, users: int, run_s: float
) -> None:
    now = users_at(PRESETS[name], at * run_s, users, run_s)
    assert now is None or 1 <= now <= users
    assert users_at(PRESETS[name], run_s, users, run_s) is None


def test_every_preset_is_described_to_its_end() -> None:
    for preset in PRESETS.values():
        times = [at for at, _ in preset.steps]
        assert (times[0], times[-1]) == (0.0, 1.0)
        assert times == sorted(times)
        assert max(share for _, share in preset.steps) == 1.0
