import os
import ssl
from pathlib import Path

import pytest
import trustme

from router.errors import StateError
from router.picker.certificates import CertificateFolder, self_signed


def test_a_signed_certificate_is_of_its_key_and_of_nobody_else(tmp_path: Path) -> None:
    first, second = self_signed(), self_signed()
    assert first.key != second.key
    for name, data in (("tls.key", first.key), ("tls.crt", first.certificate)):
        (tmp_path / name).write_bytes(data)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")


def write(folder: Path, at_ns: int) -> bytes:
    issued = trustme.CA().issue_cert("picker.example")
    (folder / "tls.key").write_bytes(issued.private_key_pem.bytes())
    (folder / "tls.crt").write_bytes(issued.cert_chain_pems[0].bytes())
    for name in ("tls.key", "tls.crt"):
        os.utime(folder / name, ns=(at_ns, at_ns))
    return issued.private_key_pem.bytes()


def test_a_folder_is_read_again_when_it_changes(tmp_path: Path) -> None:
    key = write(tmp_path, 10**18)
    folder = CertificateFolder(str(tmp_path))
    assert folder.read().key == key
    assert folder.changed() is None
    key = write(tmp_path, 2 * 10**18)
    changed = folder.changed()
    assert changed is not None
    assert changed.key == key
    assert folder.changed() is None


def test_a_folder_that_cannot_be_read_keeps_the_present_certificate_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is looked at for each connection."""
    write(tmp_path, 10**18)
    folder = CertificateFolder(str(tmp_path))
    folder.read()
    (tmp_path / "tls.key").unlink()
    for _ in range(3):
        assert folder.changed() is None
    assert len(caplog.records) == 1
    write(tmp_path, 2 * 10**18)
    assert folder.changed() is not None
    (tmp_path / "tls.key").unlink()
    assert folder.changed() is None
    assert len(caplog.records) == 2
    with pytest.raises(StateError, match=r"tls\.key"):
        folder.read()
