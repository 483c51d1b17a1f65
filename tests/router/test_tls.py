"""TLS files: used, or a sentence."""

import ssl
from pathlib import Path

import pytest
import trustme

from router.errors import SettingsError
from router.settings import Settings
from router.tls import check_tls_files, worker_context


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    authority = trustme.CA()
    certificate, other = (authority.issue_cert("127.0.0.1") for _ in range(2))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "cert.key")
    other.private_key_pem.write_to_path(tmp_path / "other.key")
    (tmp_path / "empty.pem").touch()
    names = ("ca.pem", "cert.pem", "cert.key", "other.key", "empty.pem", "missing.pem")
    return {name: str(tmp_path / name) for name in names}


def problem(settings: Settings) -> str:
    with pytest.raises(SettingsError) as caught:
        check_tls_files(settings)
    (sentence,) = caught.value.problems
    return str(sentence)


def test_files_that_belong_together_pass(files: dict[str, str]) -> None:
    check_tls_files(
        Settings.model_validate(
            {
                "server": {"ssl_certfile": files["cert.pem"], "ssl_keyfile": files["cert.key"]},
                "upstream": {
                    "ca_file": files["ca.pem"],
                    "client_cert": files["cert.pem"],
                    "client_key": files["cert.key"],
                },
            }
        )
    )


@pytest.mark.parametrize("file", ["missing.pem", "empty.pem"])
def test_a_server_certificate_that_cannot_be_used_is_named(files: dict[str, str], file: str) -> None:
    sentence = problem(
        Settings.model_validate({"server": {"ssl_certfile": files[file], "ssl_keyfile": files["cert.key"]}})
    )
    assert sentence.startswith(f"server.ssl_certfile: cannot use {files[file]} with {files['cert.key']}: ")


def test_authorities_of_clients_that_cannot_be_used_are_named(files: dict[str, str]) -> None:
    server = {"ssl_certfile": files["cert.pem"], "ssl_keyfile": files["cert.key"]}
    sentence = problem(Settings.model_validate({"server": {**server, "ssl_ca_certs": files["empty.pem"]}}))
    assert sentence.startswith(f"server.ssl_ca_certs: cannot use {files['empty.pem']}: not PEM files")


def test_a_key_of_another_certificate_is_named(files: dict[str, str]) -> None:
    sentence = problem(
        Settings.model_validate(
            {"upstream": {"client_cert": files["cert.pem"], "client_key": files["other.key"]}}
        )
    )
    assert sentence.startswith("upstream.client_cert: cannot use ")
    assert "belong together" in sentence


def test_a_missing_authority_is_named(files: dict[str, str]) -> None:
    sentence = problem(Settings.model_validate({"upstream": {"ca_file": files["missing.pem"]}}))
    assert sentence == f"upstream.ca_file: cannot use {files['missing.pem']}: no such file or directory"


def test_workers_are_verified_unless_that_is_turned_off(files: dict[str, str]) -> None:
    verifying = Settings.model_validate({"upstream": {"ca_file": files["ca.pem"]}})
    trusting = Settings.model_validate({"upstream": {"verify": False}})
    assert worker_context(verifying.upstream).verify_mode is ssl.CERT_REQUIRED
    context = worker_context(trusting.upstream)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


def test_the_files_of_the_admin_api_are_checked_too(files: dict[str, str]) -> None:
    served = {"ssl_certfile": files["cert.pem"], "ssl_keyfile": files["cert.key"]}
    check_tls_files(Settings.model_validate({"admin": {**served, "ssl_ca_certs": files["ca.pem"]}}))
    wrong = {"ssl_certfile": files["cert.pem"], "ssl_keyfile": files["other.key"]}
    assert problem(Settings.model_validate({"admin": wrong})).startswith("admin.ssl_certfile: cannot use")
    wrong = {**served, "ssl_ca_certs": files["missing.pem"]}
    assert problem(Settings.model_validate({"admin": wrong})).startswith("admin.ssl_ca_certs: cannot use")
