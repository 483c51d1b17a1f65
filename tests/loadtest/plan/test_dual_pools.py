"""Savings of layers, by arithmetic."""

import pytest

from loadtest.engine.profiles import PROFILES
from loadtest.engine.shape import ModelShape
from loadtest.plan.dual_pools import DualPools, layers_of


def test_the_published_model_holds_seven_times_as_much_at_the_limit_and_five_times_as_run() -> None:
    """10 of 70 layers are full; a window pool of a fifteenth weighs as much as 4 more."""
    pro = layers_of(PROFILES["mimo-v2.5-pro"])

    assert pro.limit == pytest.approx(7.0)
    assert pro.as_run == pytest.approx(5.0, rel=0.01)
    told = " ".join(pro.sentences())
    assert "10 of 70 layers keep every token, 60 the last 128" in told
    assert "the same memory holds 7.0 times as many" in told
    assert "it holds 5.0 times as many" in told
    assert "A sequence of 1,048,576 tokens weighs" in told


def test_a_dense_model_saves_nothing() -> None:
    dense = layers_of(PROFILES["dense-70b"])

    assert dense.limit == 1.0
    assert dense.as_run is None
    assert dense.sentences() == ["All layers of dense-70b keep every token: there is one pool."]


def test_linear_layers_save_what_full_ones_would_keep_and_cost_a_state() -> None:
    shape = ModelShape(full_layers=1, full_layer_bytes=1024, state_layers=3, state_layer_bytes=1 << 20)
    model = DualPools("small", shape)

    assert model.limit == 4.0
    assert model.rows()[0] == (8192, 32.0, 11.0)
    assert "3 one state of 1 MiB each" in model.sentences()[0]
