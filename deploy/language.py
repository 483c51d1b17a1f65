"""``python -m deploy.language [PATH ...]``: find wording that readers have to read twice.

``make lint`` runs it. Checked are the pages, docstrings, comments, messages and help texts, the
console, and the files of the deployment. The rules are those of the house style that a pattern can
check: a sentence begins with its actor instead of a clause ("What a client is told ..."), no pronoun
stands for an actor ("nobody"), and no word is archaic ("anew"). Code in backquotes, targets of links and
strings of tests, which may be data, are not read.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

WORDS = {
    r"nobody|somebody|anybody|whom|who(?:m)?ever|whosoever": (
        "name the actor: client, gateway, replica, worker, engine, operator"
    ),
    r"whatever": "say which ones, or 'any'",
    r"anew": "again",
    r"alike": "equal, the same, both",
    r"besides": "beside, also",
    r"dear(?:er|est)?": "expensive",
    r"shall": "must, will",
    r"thereof|wherein|whereupon|whence|thereby|henceforth|lest|hence": "a plain word",
    r"foretells?|foretold": "predict",
    r"so (?:many|much|few) (?:\w+ )?(?:more|less|fewer)? ?(?:is|are|may|must|at)\b": "'at most N', 'N'",
    r"sent away": "rejected",
    r"is told of|are told of": "learns of, is informed of",
}
"""Pattern: what to write in its place."""

OPENINGS = re.compile(
    r"(?:^|(?<=[.:!?] )|(?<=\| ))(?:[#*>-]+ )?\**"
    r"(What|Whether|Who|Whose|Whom|Of (?:a|an|the|some|all|each|one|those|them|these)"
    r"|So (?:many|much|long|few))\b"
    r"(?P<rest>[^.?!|]*[.?!|]?)"
)
"""A sentence that begins with a clause or a particle instead of its actor. Questions are none."""

_PATTERNS = [(re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), advice) for pattern, advice in WORDS.items()]
_CODE = re.compile(r"``.*?``|`[^`]*`|(?<=\])\([^)\s]*\)", re.DOTALL)
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_PROSE = {".md", ".yaml", ".js", ".html", ".txt", ".tpl", ".json", ".sh", ""}
_UNREAD = re.compile(
    r"deploy/language\.py|router/picker/proto|deploy/(?:helm|grafana)/.*json|\.lock$|\.jsonl?$|vendor|uPlot|LICENSE|\.(?:patch|svg|css)$"
)
_WORDS_OF_A_MESSAGE = 4


def problems(text: str, *, sentences: bool) -> Iterator[tuple[int, str]]:
    """Yield the line, from 0, and a description of each finding in a piece of prose.

    Args:
        text: Prose; code in backquotes counts as one word, a link as its text.
        sentences: True if the piece is made of sentences, so that their openings are checked.
    """
    text = _CODE.sub(lambda code: "`" + "\n" * code[0].count("\n"), text)
    for pattern, advice in _PATTERNS:
        for found in pattern.finditer(text):
            yield text.count("\n", 0, found.start()), f"'{found[0]}': {advice}"
    if sentences:
        flat = re.sub(r"(?<=\S)\n(?=[^\n|#*-])", " ", text)
        for found in OPENINGS.finditer(flat):
            if not found["rest"].endswith("?"):
                yield (
                    text.count("\n", 0, found.start()),
                    f"a sentence begins with '{found[1]}': begin with the actor",
                )


def pieces(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it is made of sentences, for each piece of prose of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _pieces_of_code(text, data="tests" in path.relative_to(ROOT).parts)
    elif path.suffix == ".md":
        text = _FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
        yield 1, text, True
    else:
        yield 1, text, False


def _pieces_of_code(text: str, *, data: bool) -> Iterator[tuple[int, str, bool]]:
    tree = ast.parse(text)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            docstring = id(node) in alone
            if docstring or (not data and len(node.value.split()) >= _WORDS_OF_A_MESSAGE):
                yield node.lineno, node.value, docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.removeprefix("# "), True


def findings(paths: Sequence[Path]) -> Iterator[str]:
    """Yield ``path:line: problem`` for each finding in some files."""
    for path in paths:
        for line, text, sentences in pieces(path):
            for below, problem in problems(text, sentences=sentences):
                yield f"{path.relative_to(ROOT)}:{line + below}: {problem}"


def main(arguments: Sequence[str]) -> int:
    """Check the files below some paths, or all; return the exit status."""
    listed = subprocess.run(  # noqa: S603
        ["git", "ls-files", *arguments],  # noqa: S607
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    wanted = [
        ROOT / name
        for name in listed
        if Path(name).suffix in {*_PROSE, ".py"}
        and not _UNREAD.search(name)
        and not (ROOT / name).is_symlink()
    ]
    found = sorted(set(findings(wanted)))
    last = f"{len(found)} findings in {len(wanted)} files" if found else "The wording is plain."
    sys.stdout.write("\n".join([*found, last]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
