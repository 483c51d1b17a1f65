"""The process checks before its start if it can receive events."""

import importlib.util

import pytest

from router.errors import SettingsError
from router.process.kv_events import check_kv_events
from router.settings import Settings


def test_without_zeromq_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Settings.model_validate({"fleet": {"kv_events": "auto"}})
    check_kv_events(wanted)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    check_kv_events(Settings())
    with pytest.raises(SettingsError, match=r"the extra kv-events"):
        check_kv_events(wanted)
