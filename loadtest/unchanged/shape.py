"""The size and shape of a checkout's Python code, folder by folder.

    python -m loadtest.unchanged.shape [CHECKOUT]

A function's lines leave out its docstring; its parameters leave out self and cls. Code lines are neither
blank nor comments nor docstrings. Three numbers in a cell are median, 95th percentile and maximum.
"""

import argparse
import ast
import statistics
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from loadtest.bench.markdown import table

PRODUCT = ("router", "policies", "radix")
COLUMNS = {
    **{name: (name,) for name in PRODUCT},
    "product": PRODUCT,
    "loadtest": ("loadtest",),
    "tests": ("tests",),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def shape(files: Iterable[Path]) -> dict[str, str]:
    """Measure Python files; the figures by name, as text."""
    texts = [file.read_text() for file in files]
    trees = [ast.parse(text) for text in texts]
    nodes = list(chain.from_iterable(map(ast.walk, trees)))
    functions = [node for node in nodes if isinstance(node, Function)]
    asserts = [ast.unparse(node.test) for node in nodes if isinstance(node, ast.Assert)]
    lines = [len(text.splitlines()) for text in texts]
    lengths = [lines_of(function) for function in functions]
    classes = [_span(node) for node in nodes if isinstance(node, ast.ClassDef)]
    code = [_code_lines(text, tree) for text, tree in zip(texts, trees, strict=True)]
    return {
        "modules": f"{len(texts):,}",
        "lines": f"{sum(lines):,}",
        "lines of a file": _three(lines),
        "files > 400 / > 500": f"{sum(n > 400 for n in lines)} / {sum(n > 500 for n in lines)}",
        "modules < 25 code lines": str(sum(0 < n < 25 for n in code)),
        "functions": f"{len(functions):,}",
        "lines of a function": _three(lengths),
        "functions > 70 lines": str(sum(n > 70 for n in lengths)),
        "parameters": _three([len(_parameters(function)) for function in functions]),
        "classes; > 400 lines": f"{len(classes)}; {sum(n > 400 for n in classes)}",
        "asserts; is not None": f"{len(asserts)}; {sum('is not None' in each for each in asserts)}",
    }


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def lines_of(function: Function) -> int:
    """Lines of a function, its docstring not counted."""
    first = function.body[0]
    return _span(function) - (_span(first) if _is_text(first) else 0)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _parameters(function: Function) -> list[str]:
    given = function.args
    names = [each.arg for each in chain(given.posonlyargs, given.args, given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def _code_lines(text: str, tree: ast.AST) -> int:
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and _is_text(node)]
    prose = set(chain.from_iterable(range(node.lineno, node.lineno + _span(node)) for node in texts))
    rows: Iterator[tuple[int, str]] = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(row) and not row.startswith("#") and number not in prose for number, row in rows)


def _three(values: Sequence[int]) -> str:
    ordered = sorted(values)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return f"{statistics.median_low(ordered)} / {high} / {ordered[-1]:,}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=Path(__file__).parents[2])
    checkout = parser.parse_args(arguments).checkout
    found = {
        name: shape(file for folder in folders for file in sorted((checkout / folder).rglob("*.py")))
        for name, folders in COLUMNS.items()
    }
    rows = [[figure, *(found[name][figure] for name in COLUMNS)] for figure in found["product"]]
    print(table(["", *COLUMNS], rows))


if __name__ == "__main__":
    main()
