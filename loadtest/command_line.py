"""The argument parser of the subcommands: errors in one line, without a page of usage."""

import argparse
import sys
from typing import NoReturn


class CommandParser(argparse.ArgumentParser):
    """Argument parser whose errors are short enough to be read."""

    def error(self, message: str) -> NoReturn:
        """Print the error and where the flags are, and exit with status 2."""
        sys.stderr.write(f"{self.prog}: {message}\nSee {self.prog} --help\n")
        raise SystemExit(2)
