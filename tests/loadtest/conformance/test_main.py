"""The command that runs suites of other routers."""

from pathlib import Path

import pytest

from loadtest.conformance.__main__ import main


def test_a_folder_without_a_suite_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--suite", str(tmp_path)]) == 1
    assert "there is no py_test/integration_mock" in capsys.readouterr().err
