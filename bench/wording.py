"""Tell prose for people among a program's string constants, by text and use.

Prose is a sentence or a part of one: an error's message or hint, a text of `--help`, the reason in
a table. A string is prose where it has a blank in it and one of these holds:

* it is raised: an argument of the exception behind `raise`;
* it goes by a name for people: the argument `hint=`, `help=`, `reason=`, `why=`, ..., or what is
  assigned to such a name;
* it is plain words, three or more or an article with a noun, without a character of patterns,
  commands or formats, and is returned, assigned or handed to a function that looks nothing up.

What a string is compared with, looked up by, split at or matched against is never prose, nor is
an item of a list that has a name, and no public constant of a module is by its words alone: other
modules may compare it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

Parents = Mapping[ast.AST, ast.AST]

_FOR_PEOPLE = re.compile(
    r"(?:.*_)?(?:about|advice|again|ask|description|epilog|examples|fix|help|hint|problem|reason"
    r"|remedy|rule|usage|valid|why)",
    re.IGNORECASE,
)
_READERS = {
    *("compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub"),
    *("count", "endswith", "find", "index", "partition", "removeprefix", "removesuffix"),
    *("replace", "rpartition", "rsplit", "startswith", "strip", "strftime", "strptime"),
    *("get", "pop", "getattr", "encode", "write", "write_bytes", "write_text", "writestr"),
}
_PLAIN = re.compile(r"\W{0,2}(?!-)[\w'`(\"][\w'`\"().,;:!?%+ -]*")
_NO_SENTENCE = re.compile(r"(?:^| )-|=|:\w|\w\.\w")  # options, assignments, addresses, file names
_WORD = re.compile(r"(?<![\w'])[a-z][a-z'-]*(?![\w'])")
_ARTICLE = re.compile(r"(?:an?|its|no|the|this) [a-z]")
_PARTS = (ast.BinOp, ast.BoolOp, ast.IfExp, ast.Tuple, ast.List, ast.Starred, ast.FormattedValue)
_USES = (ast.Return, ast.Yield, ast.AugAssign, ast.Dict, ast.comprehension, ast.For)


def parents_of(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """The node above each node."""
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def is_prose(constant: ast.Constant, parents: Parents) -> bool:
    """Whether a string constant is wording, which no behaviour depends on."""
    text = constant.value
    if not isinstance(text, str) or " " not in text.strip():
        return False
    node, is_item = _used_by(constant, parents)
    if isinstance(node, ast.Call):
        is_raised = isinstance(parents[node], ast.Raise)
        return is_raised or (_name(node.func) not in _READERS and _is_plain(text))
    if isinstance(node, ast.keyword):
        return bool(node.arg and _FOR_PEOPLE.fullmatch(node.arg)) or _is_plain(text)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return not is_item and _is_assigned_prose(node, text, parents)
    return isinstance(node, _USES) and _is_plain(text)


def _used_by(constant: ast.Constant, parents: Parents) -> tuple[ast.AST | None, bool]:
    """The node that a string, or the text around it, is for; and whether it is a list's item.

    No node where something is looked up by it.
    """
    below: ast.AST = constant
    node, is_item = parents[constant], False
    while isinstance(node, (*_PARTS, ast.JoinedStr)):
        if isinstance(node, ast.IfExp) and below is node.test:
            return None, False
        is_item = is_item or isinstance(node, ast.Tuple | ast.List)
        below, node = node, parents[node]
    if isinstance(node, ast.Dict) and below in node.keys:
        return None, False
    return node, is_item


def _is_assigned_prose(node: ast.Assign | ast.AnnAssign, text: str, parents: Parents) -> bool:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if _FOR_PEOPLE.fullmatch(_name(target)):
        return True
    is_public = isinstance(parents[node], ast.Module) and not _name(target).startswith("_")
    return not is_public and _is_plain(text)


def _is_plain(text: str) -> bool:
    is_text = _PLAIN.fullmatch(text) is not None and _NO_SENTENCE.search(text) is None
    return is_text and (len(_WORD.findall(text)) > 2 or _ARTICLE.match(text) is not None)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
