"""Promises of the script alone; ``test_cross_check.py`` runs it as its parent does."""

import ast
import sys
from pathlib import Path

from loadtest.study import dynamo_replay


def test_it_needs_nothing_but_the_standard_library() -> None:
    """Dynamo's environment has none of our packages."""
    tree = ast.parse(Path(dynamo_replay.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }

    assert imported <= sys.stdlib_module_names
