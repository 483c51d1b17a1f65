"""The command line, as far as it needs no engine."""

import pytest

from loadtest.bench.window_truth.__main__ import main


@pytest.mark.parametrize(
    "arguments", [["--requests", "0"], ["--requests", "5000"], ["--kinds", "mistral"], ["--seed", "x"]]
)
def test_what_cannot_be_measured_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2


def test_without_an_engine_it_says_how_to_get_one(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CACHEWAY_ENGINES", str(tmp_path))

    assert main(["--kinds", "gemma3", "--requests", "1"]) == 1
    assert "python -m loadtest.vllm install" in capsys.readouterr().err
