"""Keys change without a restart; time stands still between two looks."""

import os
from pathlib import Path

import pytest

from router.errors import SettingsError
from router.tenants import Keyring, KeysFileError, KeysWatch, TokensWatch, check_keys_file
from router.tenants.keys import digest_of


def content(*owned: tuple[str, str]) -> str:
    lines = [f"  {name}: {{keys: [sha256:{digest_of(key.encode()).hex()}]}}\n" for name, key in owned]
    return "tenants:\n" + "".join(lines)


class Watched:
    """A keys file and what a gateway knows of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.yaml"
        self.now_s = 1000.0
        self.put(content(("acme", "one")))
        self.watch = KeysWatch(str(self.file), Keyring(), now_unix_s=lambda: self.now_s)
        self.watch.load()

    def put(self, text: str) -> None:
        """Replace the file by another one, as editors and Kubernetes do."""
        other = self.file.with_suffix(".new")
        other.write_text(text)
        other.replace(self.file)

    async def look(self, times: int = 2) -> None:
        for _ in range(times):
            await self.watch.look()

    def owner(self, key: str) -> str | None:
        tenant = self.watch.keyring.tenant_of(key.encode())
        return None if tenant is None else tenant.name


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


async def test_a_new_file_takes_the_place_of_the_old_one(watched: Watched) -> None:
    assert watched.owner("one") == "acme"
    watched.put(content(("acme", "two"), ("other", "three")))
    await watched.look()
    assert [watched.owner(key) for key in ("one", "two", "three")] == [None, "acme", "other"]
    assert (watched.watch.problem, watched.watch.loaded_count, watched.watch.refused_count) == (None, 2, 0)


async def test_a_file_that_still_changes_is_left_alone(watched: Watched) -> None:
    """Half of a file may be a file, too: one with half of the tenants."""
    for count in range(1, 5):
        watched.put(content(*((f"t{index}", f"k{index}") for index in range(count))))
        await watched.look(1)
        assert watched.owner("one") == "acme"
    await watched.look(1)
    assert [watched.owner(key) for key in ("one", "k0", "k3")] == [None, "t0", "t3"]


async def test_a_change_in_place_is_seen_too(watched: Watched) -> None:
    """The same inode, and the same length."""
    watched.file.write_text(content(("acme", "two")))
    os.utime(watched.file, ns=(1, 1))
    await watched.look()
    assert watched.owner("two") == "acme"


async def test_a_folder_of_links_that_is_exchanged_is_seen(tmp_path: Path) -> None:
    """A Secret is mounted as keys.yaml -> ..data/keys.yaml, with ..data -> a folder for each version."""
    for version, key in (("v1", "one"), ("v2", "two")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys.yaml").write_text(content(("acme", key)))
        os.utime(tmp_path / version / "keys.yaml", ns=(1, 1))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys.yaml").symlink_to("..data/keys.yaml")
    watch = KeysWatch(str(tmp_path / "keys.yaml"), Keyring())
    watch.load()
    (tmp_path / "..new").symlink_to("v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    await watch.look()
    await watch.look()
    assert watch.keyring.tenant_of(b"one") is None
    assert watch.keyring.tenant_of(b"two") is not None


@pytest.mark.parametrize("text", ["tenants: {", "tenants: {acme: {weight: -1}}", ""])
async def test_a_broken_file_keeps_the_old_keys_and_is_told_of_once(
    watched: Watched, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    watched.put(text)
    await watched.look(5)
    assert watched.owner("one") == "acme"
    assert watched.watch.problem is not None
    assert watched.watch.refused_count == 1
    (record,) = [entry for entry in caplog.records if entry.__dict__.get("event") == "keys.refused"]
    assert record.levelname == "ERROR"
    watched.put(content(("acme", "two")))
    await watched.look()
    assert (watched.owner("two"), watched.watch.problem) == ("acme", None)


async def test_a_file_that_vanished_keeps_the_old_keys_until_it_is_back(watched: Watched) -> None:
    """For a moment that is how some programs write files."""
    watched.file.rename(watched.file.with_suffix(".away"))
    await watched.look(1)
    assert watched.watch.problem is None
    await watched.look(2)
    assert watched.owner("one") == "acme"
    assert watched.watch.problem is not None
    assert "cannot be read" in watched.watch.problem
    watched.file.with_suffix(".away").rename(watched.file)
    await watched.look()
    assert (watched.owner("one"), watched.watch.problem, watched.watch.refused_count) == ("acme", None, 1)


async def test_a_file_that_is_away_again_and_again_is_not_missed(watched: Watched) -> None:
    away = watched.file.with_suffix(".away")
    for _ in range(3):
        watched.file.rename(away)
        await watched.look(1)
        away.rename(watched.file)
        await watched.look(1)
    assert (watched.watch.problem, watched.watch.loaded_count) == (None, 1)


async def test_keys_begin_and_expire_while_the_file_stays_as_it_is(watched: Watched) -> None:
    hashes = [f"sha256:{digest_of(key).hex()}" for key in (b"old", b"new")]
    watched.put(
        "tenants: {acme: {keys: ["
        f"{{hash: {hashes[0]}, expires: 1970-01-01T00:20:00Z}}, "
        f"{{hash: {hashes[1]}, not_before: 1970-01-01T00:18:20Z}}]}}}}"
    )
    await watched.look()
    for now_s, old, new in ((1000.0, "acme", None), (1100.0, "acme", "acme"), (1200.0, None, "acme")):
        watched.now_s = now_s
        await watched.look(1)
        assert (watched.owner("old"), watched.owner("new")) == (old, new)
    assert list(watched.watch.samples()) == []


def test_a_gateway_does_not_start_with_a_file_it_cannot_use(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("tenants: {a: {weight: -1}, b: {class: urgent}}")
    with pytest.raises(KeysFileError):
        KeysWatch(str(file), Keyring()).load()
    with pytest.raises(SettingsError) as refused:
        check_keys_file(str(file), "", ("normal",))
    assert len(refused.value.problems) == 2
    assert refused.value.problems[0].startswith(f"tenancy.keys_file: {file} line 1: tenants.a.weight: ")
    check_keys_file("", "", ())


def token(name: str, role: str, secret: str) -> str:
    return f"tokens: {{{name}: {{role: {role}, hash: 'sha256:{digest_of(secret.encode()).hex()}'}}}}"


async def test_tokens_are_watched_as_keys_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(token("ann", "read", "one"))
    watch = TokensWatch(str(file), now_unix_s=lambda: 1000.0)
    watch.load()
    for text in (token("bob", "write", "two"), "tokens: {bob: {role: king}}"):
        file.write_text(text)
        for _ in range(2):
            await watch.look()
    assert watch.holder(b"one") is None
    holder = watch.holder(b"two")
    assert holder is not None
    assert (holder.name, holder.role) == ("bob", "write")
    assert watch.problem is not None
    assert "the tokens it had before stay valid" in caplog.text


def test_a_tokens_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("tokens: {a: {role: write}}")
    with pytest.raises(SettingsError, match=r"admin\.tokens_file: .*tokens\.a\.hash: field required"):
        check_keys_file("", str(file), ())
