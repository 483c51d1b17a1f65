"""An attacker listens, or pretends to be a client or the gateway: TLS on the clients' port."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from fakes.running import Fleet, RunningGateway, until_async

HOST = "127.0.0.1"
ASKED = b"GET /health HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"


@dataclass
class Files:
    """The gateway's TLS files, and their authorities."""

    folder: Path
    authority: trustme.CA

    def serve_as(self, name: str, *, clients: trustme.CA | None = None) -> dict[str, str]:
        """Write a new certificate; return its settings for the section ``server``."""
        certificate = self.authority.issue_cert(HOST, common_name=name)
        for file, pem in (
            ("server.pem", b"".join(blob.bytes() for blob in certificate.cert_chain_pems)),
            ("server.key", certificate.private_key_pem.bytes()),
            ("clients.pem", (clients or self.authority).cert_pem.bytes()),
        ):
            replaced(self.folder / file, pem)
        said = {
            "ssl_certfile": str(self.folder / "server.pem"),
            "ssl_keyfile": str(self.folder / "server.key"),
        }
        return said if clients is None else {**said, "ssl_ca_certs": str(self.folder / "clients.pem")}

    def trusting(self, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
        """Return a client's side, with or without a certificate."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if certificate is not None:
            certificate.configure_cert(context)
        return context


def replaced(path: Path, content: bytes) -> None:
    """Write a file in one step, as Kubernetes does."""
    other = path.with_suffix(".new")
    other.write_bytes(content)
    other.replace(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, trustme.CA())


@asynccontextmanager
async def connected(
    gateway: RunningGateway, context: ssl.SSLContext
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    port = gateway.process.settings.server.port
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def served(gateway: RunningGateway, context: ssl.SSLContext) -> str:
    """Return the name on the certificate of the answering server; "" without an answer."""
    try:
        async with asyncio.timeout(60), connected(gateway, context) as (reader, writer):
            writer.write(ASKED)
            answer = await reader.read()
            if not answer.startswith(b"HTTP/1.1 200 "):
                return ""
            subject = writer.get_extra_info("peercert")["subject"]
            return str(dict(pair for (pair,) in subject)["commonName"])
    except (ssl.SSLError, ConnectionError):
        return ""


async def test_only_clients_with_a_certificate_of_the_right_authority_are_served(
    fleet: Fleet, files: Files
) -> None:
    partners, strangers = trustme.CA(), trustme.CA()
    gateway = await fleet.gateway(server=files.serve_as("gateway", clients=partners))

    assert await served(gateway, files.trusting(partners.issue_cert("partner.example"))) == "gateway"
    assert await served(gateway, files.trusting(strangers.issue_cert("partner.example"))) == ""
    assert await served(gateway, files.trusting()) == ""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
async def test_tls_before_1_2_is_not_spoken(fleet: Fleet, files: Files, version: ssl.TLSVersion) -> None:
    gateway = await fleet.gateway(server=files.serve_as("gateway"))
    old = files.trusting()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")  # otherwise the test's own side would refuse first
    old.minimum_version = old.maximum_version = version

    assert await served(gateway, files.trusting()) == "gateway"
    assert await served(gateway, old) == ""


async def test_a_renewed_certificate_is_served_without_a_restart_and_open_connections_stay(
    fleet: Fleet, files: Files
) -> None:
    gateway = await fleet.gateway(server=files.serve_as("first"))
    async with connected(gateway, files.trusting()) as (reader, writer):
        files.serve_as("second")

        async def renewed() -> bool:
            return await served(gateway, files.trusting()) == "second"

        await until_async(renewed)
        writer.write(ASKED)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")


async def test_an_authority_that_is_removed_is_believed_no_more(fleet: Fleet, files: Files) -> None:
    before, after = trustme.CA(), trustme.CA()
    gateway = await fleet.gateway(server=files.serve_as("gateway", clients=before))
    old, new = (files.trusting(each.issue_cert("client.example")) for each in (before, after))
    assert await served(gateway, old) == "gateway"
    replaced(files.folder / "clients.pem", after.cert_pem.bytes())

    async def exchanged() -> bool:
        return await served(gateway, new) == "gateway"

    await until_async(exchanged)
    assert await served(gateway, old) == ""


async def test_half_a_renewal_changes_nothing_until_the_other_half_comes(
    fleet: Fleet, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = await fleet.gateway(server=files.serve_as("first"))
    key = (files.folder / "server.key").read_bytes()
    files.serve_as("second")
    other = (files.folder / "server.key").read_bytes()
    replaced(files.folder / "server.key", key)

    async def refused() -> bool:
        assert await served(gateway, files.trusting()) == "first"
        return "TLS files cannot be used; the old ones stay" in caplog.messages

    await until_async(refused)
    replaced(files.folder / "server.key", other)

    async def renewed() -> bool:
        return await served(gateway, files.trusting()) == "second"

    await until_async(renewed)
