import importlib.util

import pytest
from pydantic import ValidationError

from router import picker_rules
from router.discovery import PodPool
from router.errors import SettingsError
from router.picker_rules import PickerRules, check_picker
from router.settings import Settings


def rules(**picker: object) -> PickerRules:
    return Settings.model_validate({"picker": picker}).picker


def test_the_defaults_are_those_of_the_reference_picker() -> None:
    """pkg/epp/server/options.go of v1.5.0."""
    default = rules()
    assert (default.grpc_port, default.grpc_health_port, default.secure_serving) == (9002, 9003, True)
    assert default.pool_group == "inference.networking.k8s.io"
    assert default.pool is None


def test_pods_are_workers_only_while_the_picker_is_on() -> None:
    assert rules(pool_name="a").pool is None
    assert rules(enabled=True).pool is None
    assert rules(enabled=True, pool_name="a", pool_namespace="b").pool == PodPool("a", "b")
    selected = rules(enabled=True, endpoint_selector="app=x", endpoint_target_ports=["8000,8001", "8000"])
    assert selected.pool == PodPool(selector=frozenset({"app=x"}), ports=("8000", "8001"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"pool_name": "a", "endpoint_selector": "app=x", "endpoint_target_ports": ["80"]},
        {"endpoint_selector": "app=x"},
        {"endpoint_target_ports": ["80"]},
        {"endpoint_selector": "app=x", "endpoint_target_ports": ["0"]},
        {"endpoint_selector": "app=x", "endpoint_target_ports": ["70000"]},
        {"endpoint_selector": "app=x", "endpoint_target_ports": ["http"]},
        {"endpoint_selector": "app=x", "endpoint_target_ports": [str(port) for port in range(1, 10)]},
        {"pool_name": "A"},
        {"pool_name": "a/b"},
        {"pool_namespace": "a.b"},
        {"pool_group": "example.com"},
        {"grpc_port": 0},
        {"streams_max": 0},
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        rules(**wrong)


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_picker(rules(enabled=True))
    monkeypatch.setattr(picker_rules, "find_spec", lambda name: None if name == "grpc" else importlib.util)
    check_picker(rules())
    with pytest.raises(SettingsError, match=r"no module grpc.*\[picker\]"):
        check_picker(rules(enabled=True))


def test_a_library_without_its_parent_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_parent(name: str) -> object:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(picker_rules, "find_spec", no_parent)
    with pytest.raises(SettingsError):
        check_picker(rules(enabled=True))
