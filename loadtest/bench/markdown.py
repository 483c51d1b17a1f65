"""Tables in Markdown, as the pages of the benchmarks have them."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table whose first ``left`` columns are words and the others figures."""
    rules = [":--" if column < left else "--:" for column in range(len(heads))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rules, *rows))
