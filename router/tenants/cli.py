"""``cacheway keys``: make keys and tokens, and check keys files before a gateway reads them.

    cacheway keys new TENANT [--salt] [--expires WHEN]     a new key, and its lines for the keys file
    cacheway keys admin NAME [--role read] [--expires WHEN]  a token for the admin API, likewise
    cacheway keys check FILE                               the file's content; status 2 if it cannot be used

The first word of a file tells tokens from keys. A key is printed once and stored nowhere.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from router.tenant import NAME, Tenant
from router.tenants.admin_tokens import AccessRole, AdminToken, AdminTokens, parsed_tokens
from router.tenants.key_entries import KeysFileError, content_of
from router.tenants.keys import KeyTable, TenantKey, digest_of, new_key, new_salt
from router.tenants.keys_file import parsed_keys

SOON_S = 7 * 86_400.0
"""A key that expires sooner is worth a word."""


def main(argv: list[str]) -> int:
    """Run the command with the arguments after ``keys``.

    Returns:
        The exit status: 2 for a wrong command line or a file that cannot be used.
    """
    arguments = _parser().parse_args(argv)
    if arguments.command == "new":
        return _new(arguments.tenant, arguments.expires, salted=arguments.salt)
    if arguments.command == "admin":
        return _admin(arguments.name, arguments.role, arguments.expires)
    return _check(arguments.file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cacheway keys", description="Make and check keys and tokens.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    new = commands.add_parser("new", help="make a key for a tenant; prints it this once")
    new.add_argument("tenant", metavar="TENANT", help="tenant of the key")
    new.add_argument("--expires", metavar="WHEN", default="", help="a date or a time, such as 2027-03-01")
    new.add_argument(
        "--salt", action="store_true", help="print a salt, too, to keep the tenant's cache apart"
    )
    admin = commands.add_parser("admin", help="make a token for the admin API; prints it this once")
    admin.add_argument("name", metavar="NAME", help="holder of the token, for the audit")
    admin.add_argument("--role", choices=get_args(AccessRole), default="write", help="its rights [write]")
    admin.add_argument("--expires", metavar="WHEN", default="", help="a date or a time, such as 2027-03-01")
    check = commands.add_parser("check", help="check a keys file and list its content")
    check.add_argument("file", metavar="FILE", type=Path)
    return parser


def _new(tenant: str, expires: str, *, salted: bool) -> int:
    key = new_key()
    digest = f"sha256:{digest_of(key.encode()).hex()}"
    entry = f"{{hash: {digest}, expires: {expires}}}" if expires else digest
    lines = ["tenants:", f"  {tenant}:", "    keys:", f"      - {entry}"]
    if salted:
        lines.append(f"    salt: {new_salt()}")
    return _shown("key", "keys file", tenant, key, lines, parsed_keys, expires)


def _admin(name: str, role: AccessRole, expires: str) -> int:
    token = new_key()
    entry = f"{{role: {role}, hash: sha256:{digest_of(token.encode()).hex()}"
    lines = ["tokens:", f"  {name}: {entry}, expires: {expires}}}" if expires else f"  {name}: {entry}}}"]
    return _shown("token", "file of tokens (admin.tokens_file)", name, token, lines, parsed_tokens, expires)


def _shown(
    noun: str,
    file: str,
    name: str,
    key: str,
    lines: list[str],
    parsed: Callable[[bytes, str], object],
    expires: str,
) -> int:
    """Print a key and its lines for the file, if the file would take them."""
    if not NAME.fullmatch(name):
        return _fail([f"{name!r} is no name of a {'tenant' if noun == 'key' else 'token'}"])
    try:
        parsed("\n".join(lines).encode(), "--expires")
    except KeysFileError:
        return _fail([f"--expires {expires!r} is no date or time such as 2027-03-01"])
    sys.stdout.write(
        f"# The {noun} of {name}. It is shown this once and stored nowhere.\n{key}\n\n"
        f"# For the {file}:\n" + "\n".join(lines) + "\n"
    )
    return 0


def _check(file: Path) -> int:
    now_unix_s = time.time()
    try:
        content = content_of(file)
        if content.lstrip().startswith((b"tokens", b'{"tokens"')):
            return _check_tokens(file, parsed_tokens(content, str(file)), now_unix_s)
        table = parsed_keys(content, str(file))
    except KeysFileError as error:
        return _fail(error.problems)
    keys = sum(map(len, table.keys.values()))
    sys.stdout.write(f"{file}: {_counted(len(table.tenants), 'tenant')}, {_counted(keys, 'key')}\n")
    for name, tenant in table.tenants.items():
        sys.stdout.write(f"{name}: {', '.join(_described(tenant, table, now_unix_s))}\n")
    return 0


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _check_tokens(file: Path, table: AdminTokens, now_unix_s: float) -> int:
    sys.stdout.write(f"{file}: {_counted(len(table.tokens), 'token')}\n")
    for token in table.tokens:
        facts = [f"may {token.role}"]
        if token.expires_unix_s <= now_unix_s:
            facts.append("expired")
        elif token.expires_unix_s < math.inf:
            facts.append(_ending(token, now_unix_s))
        sys.stdout.write(f"{token.name}: {', '.join(facts)}\n")
    return 0


def _described(tenant: Tenant, table: KeyTable, now_unix_s: float) -> list[str]:
    keys = table.keys[tenant.name]
    valid = [key for key in keys if key.valid(now_unix_s)]
    facts = [f"{len(valid)} of {len(keys)} keys valid now"]
    facts += [_ending(key, now_unix_s) for key in valid if key.expires_unix_s < math.inf]
    if tenant.weight != 1.0:
        facts.append(f"weight {tenant.weight:g}")
    if tenant.priority:
        facts.append(f"class {tenant.priority}")
    if tenant.salt:
        facts.append("cache kept apart")
    if tenant.cache_share < 1.0:
        facts.append(f"{tenant.cache_share:.1%} of KV space")
    limits = tenant.limits
    facts += [
        f"{value:,} {what}"
        for value, what in (
            (limits.requests_per_minute, "requests per minute"),
            (limits.tokens_per_minute, "tokens per minute"),
            (limits.concurrent_tokens, "tokens at a time"),
        )
        if value
    ]
    return facts


def _ending(key: TenantKey | AdminToken, now_unix_s: float) -> str:
    when = datetime.fromtimestamp(key.expires_unix_s, UTC).isoformat(timespec="seconds")
    soon = " (soon)" if key.expires_unix_s - now_unix_s < SOON_S else ""
    return f"one until {when}{soon}"


def _fail(problems: tuple[str, ...] | list[str]) -> int:
    sys.stderr.writelines(f"cacheway keys: {problem}\n" for problem in problems)
    return 2
