"""The console's picture: it names its requirements. The run itself is `make console-picture`."""

import sys

import pytest

from loadtest import console_picture


def test_without_a_browser_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["console_picture"])
    assert console_picture.main() == 1
    assert "no Chromium" in capsys.readouterr().err
