"""Small changes to Python source that a good test notices: one condition, constant or return each.

Left out is what no test of behaviour can notice:

* docstrings and annotations, the arguments of decorators (`frozen`, `slots`), `__all__`, what only
  a type checker runs (`TYPE_CHECKING`), type aliases, and what `cast` and `TypeVar` take;
* pieces of f-strings, whose positions Python 3.11 does not tell;
* prose for people, as wording.py tells it: a sentence that begins with XX is a misprint and no
  broken code. Keys, names, patterns, options of programs, formats, paths and modes stay;
* the `indent` of JSON, which reads the same;
* the sizes of pieces in which data are read and copied, how long a loop sleeps before it looks
  again, and whose processors are counted: with others the same comes out;
* how many items of a list, or letters of a text, a message shows before it breaks off;
* what `raise AssertionError` holds, where no program gets to.

A change is another one where the first would be none:

* seconds that something may take become 0: with one more, only the waiting is longer;
* a function that is annotated `-> bool` returns the opposite: None is false, too;
* what is returned and empty gets an item, for the same reason;
* the characters that `strip` takes away become another one: with one more, hardly a text differs;
* a returned number or truth value is changed as a constant, and not once more into None.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from wording import Parents, is_prose, parents_of

_OTHER: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
}
_WITHOUT_EFFECT = {
    *("cast", "TypeVar", "NewType", "ParamSpec", "NamedTuple", "TypedDict"),
    "AssertionError",
}
_FILLED: Mapping[str, str] = {
    '""': '"XX"',
    "()": '("XX",)',
    "[]": '["XX"]',
    "{}": '{"XX": "XX"}',
}
_OF_PIECES = re.compile(r".*(?:CHUNK|PIECE|POLL).*|_SHOWN")
_SECONDS = re.compile(r"(?:.*_)?(?:timeout|[sS])")
_IN_PIECES = {"read", "copyfileobj", "iter_content", "sleep", "sched_getaffinity"}
_STRIPS = {"strip()", "lstrip()", "rstrip()"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """Replace the bytes from `start` to `end` of a source by `text`.

    `lines` are those of the statement, to its end or, of a compound one, to the end of the node.
    """

    start: int
    end: int
    text: str
    lines: range
    kind: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def describe(self, source: bytes) -> str:
        """The change as `old -> new`, each on one line of at most 60 characters."""
        old = " ".join(source[self.start : self.end].decode().split())
        return f"{self.kind}: {old[:60]} -> {' '.join(self.text.split())[:60]}"


def mutations(source: bytes) -> list[Mutation]:
    """All mutations of a module's source, in its order."""
    tree = ast.parse(source)
    return list(_Mutator(source, parents_of(tree)).of(tree, None))


class _Mutator:
    def __init__(self, source: bytes, parents: Parents) -> None:
        self._source = source
        self._parents = parents
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.AST, statement: ast.stmt | None) -> Iterator[Mutation]:
        if _is_left_out(node, self._parents):
            return
        if isinstance(node, ast.stmt):
            statement = node
        if statement is not None:
            yield from self._here(node, statement)
        for name, child in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list"}:
                continue
            for one in child if isinstance(child, list) else [child]:
                if isinstance(one, ast.AST) and not _is_docstring(one, node):
                    yield from self.of(one, statement)

    def _here(self, node: ast.AST, statement: ast.stmt) -> Iterator[Mutation]:
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            yield self._replaced(
                node.test, f"(not ({self._text(node.test)}))", statement, "negated"
            )
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield self._negated(test, statement)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            pattern, other = _OTHER[type(node.ops[0])]
            yield from self._between(node.left, node.comparators[0], pattern, other, statement)
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            yield from self._between(node.values[0], node.values[1], old, new, statement)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._replaced(node, f"({self._text(node.operand)})", statement, "not left out")
        elif isinstance(node, ast.Constant):
            yield from self._constant(node, statement)
        elif isinstance(node, ast.Return) and node.value is not None:
            yield from self._returned(node.value, statement)

    def _negated(self, test: ast.expr, statement: ast.stmt) -> Mutation:
        return self._replaced(test, f"(not ({self._text(test)}))", statement, "negated")

    def _returned(self, value: ast.expr, statement: ast.stmt) -> Iterator[Mutation]:
        text = self._text(value)
        if text in _FILLED:
            yield self._replaced(value, _FILLED[text], statement, "returned")
        elif isinstance(value, ast.Constant) and not isinstance(value.value, str | bytes):
            return  # None, or changed as a constant
        elif not _is_annotated_bool(statement, self._parents):
            yield self._replaced(value, "None", statement, "returned")
        elif not isinstance(value, ast.UnaryOp) and not _is_simple_comparison(value):
            yield self._replaced(value, f"(not ({text}))", statement, "negated")

    def _constant(self, node: ast.Constant, statement: ast.stmt) -> Iterator[Mutation]:
        text = self._text(node)
        if isinstance(node.value, bool):
            yield self._replaced(node, str(not node.value), statement, "constant")
        elif isinstance(node.value, int | float):
            new = "0" if node.value and _is_seconds(node, self._parents) else f"({text} + 1)"
            yield self._replaced(node, new, statement, "constant")
        elif isinstance(node.value, str) and node.value and not is_prose(node, self._parents):
            is_stripped = _name_of(node, self._parents) in _STRIPS
            new = '"X"' if is_stripped else f'("XX" + {text})'
            yield self._replaced(node, new, statement, "constant")
        elif isinstance(node.value, bytes) and node.value:
            yield self._replaced(node, f'(b"XX" + {text})', statement, "constant")

    def _between(
        self, left: ast.expr, right: ast.expr, old: str, new: str, statement: ast.stmt
    ) -> Iterator[Mutation]:
        """The operator that stands between two operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        found = re.search(
            rf"(?<!\w){old}(?!\w)" if old[0].isalpha() else old, self._cut(start, end)
        )
        if found:
            at = start + found.start()
            yield Mutation(
                start=at,
                end=start + found.end(),
                text=new,
                lines=_lines(statement, right),
                kind="operator",
            )

    def _replaced(self, node: ast.expr, text: str, statement: ast.stmt, kind: str) -> Mutation:
        start, end = self._span(node)
        return Mutation(start=start, end=end, text=text, lines=_lines(statement, node), kind=kind)

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._starts[node.lineno - 1] + node.col_offset
        return start, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _cut(self, start: int, end: int) -> str:
        return self._source[start:end].decode(errors="replace")

    def _text(self, node: ast.expr) -> str:
        return self._cut(*self._span(node))


def _lines(statement: ast.stmt, node: ast.expr) -> range:
    is_compound = hasattr(statement, "body")
    end = node.end_lineno if is_compound else statement.end_lineno
    return range(node.lineno if is_compound else statement.lineno, (end or node.lineno) + 1)


def _is_annotated_bool(statement: ast.stmt, parents: Parents) -> bool:
    """Whether the function of a `return` says that it returns a truth value."""
    node: ast.AST = statement
    while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        node = parents[node]
    return isinstance(node.returns, ast.Name) and node.returns.id == "bool"


def _is_simple_comparison(node: ast.expr) -> bool:
    """Whether a change of its operator is the opposite already."""
    return isinstance(node, ast.Compare) and len(node.ops) == 1


def _is_seconds(number: ast.Constant, parents: Parents) -> bool:
    """Whether a number is how long something may take, by the name that it goes by."""
    return _SECONDS.fullmatch(_name_of(number, parents)) is not None


def _name_of(number: ast.AST, parents: Parents) -> str:
    """The variable or argument that a number, or the sum or tuple that it is in, is for."""
    below = number
    node = parents[number]
    while isinstance(node, ast.BinOp | ast.Tuple | ast.UnaryOp):
        below, node = node, parents[node]
    if isinstance(node, ast.keyword):
        return node.arg or ""
    if isinstance(node, ast.Call) and below is not node.func:
        return f"{_identifier(node.func)}()"
    if isinstance(node, ast.arguments):
        return _name_of_default(below, node)
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return _identifier(target)


def _name_of_default(default: ast.AST, of: ast.arguments) -> str:
    positional = [*of.posonlyargs, *of.args]
    pairs = [
        *zip(reversed(positional), reversed(of.defaults), strict=False),
        *zip(of.kwonlyargs, of.kw_defaults, strict=True),
    ]
    return next((name.arg for name, value in pairs if value is default), "")


def _identifier(node: ast.AST | None) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_docstring(node: ast.AST, parent: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(parent, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _is_left_out(node: ast.AST, parents: Parents) -> bool:
    match node:
        case ast.If():
            return any(word in ast.unparse(node.test) for word in ("TYPE_CHECKING", "__main__"))
        case ast.Assign():
            return any(_identifier(target) == "__all__" for target in node.targets)
        case ast.AnnAssign():
            return _identifier(node.annotation) == "TypeAlias"
        case ast.Call():
            return isinstance(node.func, ast.Name) and node.func.id in _WITHOUT_EFFECT
        case ast.JoinedStr() | ast.pattern() | ast.Import() | ast.ImportFrom():
            return True
    return _is_without_effect(node, parents)


def _is_without_effect(node: ast.AST, parents: Parents) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "indent"
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return is_number and _is_of_pieces(node, parents)


def _is_of_pieces(number: ast.AST, parents: Parents) -> bool:
    """Whether a number says how much is read or copied at once, or how long a loop sleeps."""
    name = _name_of(number, parents)
    return name.removesuffix("()") in _IN_PIECES or _OF_PIECES.fullmatch(name) is not None
