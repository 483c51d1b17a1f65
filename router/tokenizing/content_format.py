"""Form of content that a chat template takes: one text, or a list of parts.

    {% for message in messages %}{{ message.content }}                               text: parts become lines
    {% for message in messages %}{% for part in message.content %}{{ part.text }}    a list, also of texts

vLLM detects it from the template (``_detect_content_format`` in ``vllm/renderers/hf.py``), and renders the
same conversation differently for each. Its rule is followed to the letter: a list if some loop runs over the
content of an item of ``messages``, over a macro's parameter that is given one, or, outside of macros, over a
variable called ``content``. Other forms (a loop with two variables) count as text.
"""

from collections.abc import Iterable

from jinja2 import nodes


class _Unclear(Exception):
    """The rule does not cover a template."""


def takes_parts(template: nodes.Template) -> bool:
    """Return True if a parsed template takes lists of parts."""
    try:
        return _loops_over_content(template)
    except _Unclear:
        return False


def _loops_over_content(template: nodes.Template) -> bool:
    loops = list(template.find_all(nodes.For))
    conversations = _aliases(template, "messages")
    turns = [_name(loop.target) for loop in loops if _is_one_of(loop.iter, conversations)]
    in_macros: set[int] = set()
    given: dict[int, set[str]] = {}
    calls = list(template.find_all(nodes.Call))
    for macro in template.find_all(nodes.Macro):
        contents = _contents_given(macro, calls, turns)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if contents:
                given[id(loop)] = contents
    for loop in loops:
        over = loop.iter
        if _is_content(over, turns):
            _name(loop.target)
            return True
        if not isinstance(over, nodes.Name):
            continue
        if over.name in given.get(id(loop), ()) or (over.name == "content" and id(loop) not in in_macros):
            _name(loop.target)
            return True
    return False


def _aliases(template: nodes.Template, name: str) -> list[str]:
    """Return a name, and those that it is assigned to."""
    found = [name]
    for known in found:
        for assign in template.find_all(nodes.Assign):
            if _is_one_of(assign.node, (known,)) and (alias := _name(assign.target)) not in found:
                found.append(alias)
    return found


def _contents_given(macro: nodes.Macro, calls: Iterable[nodes.Call], turns: list[str]) -> set[str]:
    """Return the parameters of a macro that get the content of a turn somewhere."""
    names = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in calls:
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        found.update(name for name, value in zip(names, call.args, strict=False) if _is_content(value, turns))
        found.update(
            keyword.key
            for keyword in call.kwargs
            if keyword.key in names and _is_content(keyword.value, turns)
        )
    return found


def _bare(node: nodes.Node | None) -> nodes.Node | None:
    """Return the node that is filtered, tested or sliced."""
    while True:
        match node:
            case (
                nodes.Filter(node=inner)
                | nodes.Test(node=inner)
                | nodes.Getitem(node=inner, arg=nodes.Slice())
            ):
                node = inner
            case _:
                return node


def _is_one_of(node: nodes.Node, names: Iterable[str]) -> bool:
    bare = _bare(node)
    return isinstance(bare, nodes.Name) and bare.ctx == "load" and bare.name in names


def _is_content(node: nodes.Node, turns: list[str]) -> bool:
    match _bare(node):
        case nodes.Getitem(node=nodes.Name(name=name, ctx="load"), arg=nodes.Const(value="content")):
            return name in turns
        case nodes.Getattr(node=nodes.Name(name=name, ctx="load"), attr="content"):
            return name in turns
    return False


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unclear
    name: str = target.name
    return name
