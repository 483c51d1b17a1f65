"""``cacheway keys``: make keys, and check keys files before a gateway reads them.

    cacheway keys new TENANT [--salt] [--expires WHEN]     a new key, and what the keys file gets of it
    cacheway keys check FILE                               what the file says; status 2 if it cannot be used

A key is printed once and stored nowhere.
"""

import argparse
import math
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from router.tenants.keys import KeyTable, TenantKey, digest_of, new_key, new_salt
from router.tenants.keys_file import KeysFileError, load_keys, parsed_keys
from router.tenants.tenant import NAME, Tenant

SOON_S = 7 * 86_400.0
"""A key that expires sooner is worth a word."""


def main(argv: list[str]) -> int:
    """Run the command.

    Args:
        argv: Arguments after ``keys``.

    Returns:
        The exit status: 2 for a wrong command line or a file that cannot be used.
    """
    arguments = _parser().parse_args(argv)
    if arguments.command == "new":
        return _new(arguments.tenant, arguments.expires, salted=arguments.salt)
    return _check(arguments.file)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cacheway keys", description="Make and check tenants' keys.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    new = commands.add_parser("new", help="make a key for a tenant; prints it this once")
    new.add_argument("tenant", metavar="TENANT", help="whose it will be")
    new.add_argument("--expires", metavar="WHEN", default="", help="a date or a time, such as 2027-03-01")
    new.add_argument(
        "--salt", action="store_true", help="print a salt, too, to keep the tenant's cache apart"
    )
    check = commands.add_parser("check", help="check a keys file and say what it holds")
    check.add_argument("file", metavar="FILE", type=Path)
    return parser


def _new(tenant: str, expires: str, *, salted: bool) -> int:
    key = new_key()
    digest = f"sha256:{digest_of(key.encode()).hex()}"
    entry = f"{{hash: {digest}, expires: {expires}}}" if expires else digest
    lines = ["tenants:", f"  {tenant}:", "    keys:", f"      - {entry}"]
    if salted:
        lines.append(f"    salt: {new_salt()}")
    if not NAME.fullmatch(tenant):
        return _fail([f"{tenant!r} is no name of a tenant"])
    try:
        parsed_keys("\n".join(lines).encode(), "--expires")
    except KeysFileError:
        return _fail([f"--expires {expires!r} is no date or time such as 2027-03-01"])
    sys.stdout.write(
        f"# The key of {tenant}. It is shown this once and stored nowhere.\n{key}\n\n"
        "# For the keys file:\n" + "\n".join(lines) + "\n"
    )
    return 0


def _check(file: Path) -> int:
    try:
        table = load_keys(file)
    except KeysFileError as error:
        return _fail(error.problems)
    now_unix_s = time.time()
    sys.stdout.write(f"{file}: {len(table.tenants)} tenants, {sum(map(len, table.keys.values()))} keys\n")
    for name, tenant in table.tenants.items():
        sys.stdout.write(f"{name}: {', '.join(_described(tenant, table, now_unix_s))}\n")
    return 0


def _described(tenant: Tenant, table: KeyTable, now_unix_s: float) -> list[str]:
    keys = table.keys[tenant.name]
    valid = [key for key in keys if key.valid(now_unix_s)]
    said = [f"{len(valid)} of {len(keys)} keys valid now"]
    said += [_ending(key, now_unix_s) for key in valid if key.expires_unix_s < math.inf]
    if tenant.weight != 1.0:
        said.append(f"weight {tenant.weight:g}")
    if tenant.priority:
        said.append(f"class {tenant.priority}")
    if tenant.salt:
        said.append("cache kept apart")
    limits = tenant.limits
    said += [
        f"{value} {what}"
        for value, what in (
            (limits.requests_per_minute, "requests per minute"),
            (limits.tokens_per_minute, "tokens per minute"),
            (limits.concurrent_tokens, "tokens at a time"),
        )
        if value
    ]
    return said


def _ending(key: TenantKey, now_unix_s: float) -> str:
    when = datetime.fromtimestamp(key.expires_unix_s, UTC).isoformat(timespec="seconds")
    soon = " (soon)" if key.expires_unix_s - now_unix_s < SOON_S else ""
    return f"one until {when}{soon}"


def _fail(problems: tuple[str, ...] | list[str]) -> int:
    sys.stderr.writelines(f"cacheway keys: {problem}\n" for problem in problems)
    return 2
