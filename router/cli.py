"""The command ``cacheway``.

    cacheway serve [FLAGS]      run the gateway
    cacheway picker [FLAGS]     run it as the endpoint picker of a proxy, too
    cacheway config [FLAGS]     show the effective settings, or write the reference pages
    cacheway version
    cacheway keys ...           make and check the keys of tenants
    cacheway engine|demo ...    development tools, in the optional extra (also simulate, plan, calibrate)

This module parses, loads the settings, and turns errors into sentences and exit status 2. `router.__main__`
hands in the functions that do the work.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from router.catalogue import CATALOGUE
from router.errors import SettingsError
from router.flags import HELP_ALL, Parser, add_flags, add_peer_flags, chosen, chosen_of_peers
from router.metric_families import metrics_reference
from router.peers import peers_reference, translated
from router.reference import configuration_reference, effective
from router.sources import Loaded, load

PICKER_ENABLED = "picker.enabled"
"""The setting that the command ``picker`` turns on."""

_BESIDE = __package__.removesuffix("router")
"""Start of our packages' names: nothing in a checkout, ``cacheway.`` in a wheel (decision 0069)."""

OUR_PACKAGES = tuple(f"{_BESIDE}{name}" for name in ("router", "policies", "radix", "loadtest"))
OPTIONAL_PACKAGE = f"{_BESIDE}loadtest"
"""The package that the gateway's image leaves out."""

Serve = Callable[[Loaded], int]
Tool = Callable[[list[str]], int]


def main(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    serve: Serve,
    tools: Mapping[str, tuple[Tool, str]],
) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name.
        environ: The environment.
        serve: Runs the gateway; raises `SettingsError` if it cannot use a file or address of the settings.
        tools: Commands that parse their own arguments, by name, with a line of help.

    Returns:
        The exit status: 2 for a wrong command line or wrong settings.
    """
    if argv and argv[0] in tools:
        return _run_tool(argv[0], tools[argv[0]][0], list(argv[1:]))
    if not argv:
        _parser(tools, argv).print_help()
        return 0
    arguments = _parser(tools, argv).parse_args(argv)  # a name would keep the parser while the gateway serves
    if arguments.command == "version":
        sys.stdout.write(f"{version('cacheway')}\n")
        return 0
    if arguments.command == "config" and arguments.reference:
        sys.stdout.write(configuration_reference())
        return 0
    if arguments.command == "config" and arguments.metrics_reference:
        sys.stdout.write(metrics_reference())
        return 0
    if arguments.command == "config" and arguments.peers_reference:
        sys.stdout.write(peers_reference())
        return 0
    try:
        loaded = _loaded(arguments, environ)
        if arguments.command == "config":
            if loaded.note:
                sys.stderr.write(f"cacheway: {loaded.note}\n")
            sys.stdout.write(effective(loaded))
            return 0
        return serve(loaded)
    except SettingsError as error:
        sys.stderr.writelines(f"cacheway: {problem}\n" for problem in error.problems)
        return 2


def _loaded(arguments: Namespace, environ: Mapping[str, str]) -> Loaded:
    """Load the settings of a command line that may be another router's; raise SettingsError."""
    keys = {row.flag: row.key for row in CATALOGUE.values()}
    ours = chosen(arguments)
    if arguments.command == "picker":
        ours.setdefault(PICKER_ENABLED, True)
    given = translated(ours, chosen_of_peers(arguments), environ, keys)
    try:
        loaded = load(given.values, environ, arguments.config)
    except SettingsError as error:
        raise SettingsError([*given.problems, *error.problems]) from error
    if given.problems:
        raise SettingsError(given.problems)
    return replace(loaded, note=given.note)


def _parser(tools: Mapping[str, tuple[Tool, str]], argv: Sequence[str]) -> Parser:
    show_all = HELP_ALL in argv
    parser = Parser(prog="cacheway", description="A cache-affinity gateway for LLM fleets.")
    parser.add_argument("--version", action="version", version=version("cacheway"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="run the gateway",
        description=f"Run the gateway. The settings that matter most are below; {HELP_ALL} shows the others.",
        usage="cacheway serve [--config FILE] [--worker-urls URL ...] [FLAG ...]",
    )
    add_flags(serve, show_all=show_all)
    add_peer_flags(serve, argv)
    picker = commands.add_parser(
        "picker",
        help="choose workers for Envoy, Istio or GKE (extra: picker)",
        description="Serve the endpoint-picker protocol, beside the routes of serve. Takes the flags of "
        f"serve; {HELP_ALL} shows all of them.",
        usage="cacheway picker [--config FILE] [--pool-name NAME] [--pool-namespace NAMESPACE] [FLAG ...]",
    )
    add_flags(picker, show_all=show_all)
    add_peer_flags(picker, argv)
    config = commands.add_parser(
        "config",
        help="show the effective settings and their sources",
        description="Show the effective settings and their sources. Takes the flags of serve; "
        f"{HELP_ALL} shows all of them.",
        usage="cacheway config [--reference | --metrics-reference | --peers-reference] [--config FILE] "
        "[FLAG ...]",
    )
    config.add_argument("--reference", action="store_true", help="write the configuration reference instead")
    config.add_argument("--metrics-reference", action="store_true", help="write the page of metrics instead")
    config.add_argument(
        "--peers-reference", action="store_true", help="write the page of other routers' flags instead"
    )
    add_flags(config, show_all=show_all)
    add_peer_flags(config, argv)
    commands.add_parser("version", help="print the version")
    for name, (_, about) in tools.items():
        commands.add_parser(name, help=about, add_help=False)
    return parser


def _run_tool(name: str, tool: Tool, argv: list[str]) -> int:
    """Run a command, or say that the optional extra is not installed."""
    try:
        return tool(argv)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        ours = any(f"{missing}.".startswith(f"{package}.") for package in OUR_PACKAGES)
        if ours and missing != OPTIONAL_PACKAGE:
            raise
        module = missing if ours else missing.partition(".")[0]
        sys.stderr.write(
            f"cacheway {name} needs the extra loadtest (there is no module {module}): "
            "install Cacheway with it, in a checkout with: pip install '.[loadtest]'\n"
        )
        return 2
