"""Facts about the machine, as it reports them."""

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from loadtest.bench.peers.machine import Machine, cacheway_version, cpu_model, nginx_version, package_version


def test_the_model_is_that_of_the_first_cpu() -> None:
    assert (
        cpu_model("processor\t: 0\nmodel name\t: Some CPU 9 @ 3.0GHz\n\nmodel name\t: X\n")
        == "Some CPU 9 @ 3.0GHz"
    )


def test_a_machine_that_does_not_tell_its_model_is_called_by_its_architecture() -> None:
    assert cpu_model("processor\t: 0\nBogoMIPS\t: 50\n") == platform.machine()


def test_this_machine_is_described() -> None:
    machine = Machine.here()

    assert machine.cpus >= 1
    assert machine.python.endswith(platform.python_version())
    assert platform.release().startswith(machine.kernel.split()[1])


def test_the_version_of_a_package_is_asked_of_its_own_interpreter() -> None:
    assert package_version(Path(sys.executable), "msgspec") == metadata.version("msgspec")


def test_a_package_that_is_not_there_has_no_version() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        package_version(Path(sys.executable), "no-such-package")


def test_nginx_tells_its_version_on_standard_error(tmp_path: Path) -> None:
    nginx = tmp_path / "nginx"
    nginx.write_text('#!/bin/sh\n[ "$1" = -v ] && echo "nginx version: nginx/1.22.1" >&2\n')
    nginx.chmod(0o755)

    assert nginx_version(nginx) == "1.22.1"


def test_cacheway_has_its_version_even_outside_a_checkout(tmp_path: Path) -> None:
    assert cacheway_version(tmp_path) == metadata.version("cacheway")
