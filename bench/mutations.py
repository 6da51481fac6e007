"""Small changes to Python source that a good test notices: one condition, constant or return each.

Left out, since no test of behaviour can notice them: docstrings and annotations, the arguments of
decorators (`frozen`, `slots`), `__all__`, what only a type checker runs (`TYPE_CHECKING`), the
names and strings that `cast` and `TypeVar` take, and pieces of f-strings, whose positions Python
3.11 does not tell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
_FOR_CHECKERS = {"cast", "TypeVar", "NewType", "ParamSpec", "NamedTuple", "TypedDict"}


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
    return list(_Mutator(source).of(ast.parse(source), None))


class _Mutator:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.AST, statement: ast.stmt | None) -> Iterator[Mutation]:
        if _is_left_out(node):
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
        elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield self._replaced(node.value, "None", statement, "returned")

    def _negated(self, test: ast.expr, statement: ast.stmt) -> Mutation:
        return self._replaced(test, f"(not ({self._text(test)}))", statement, "negated")

    def _constant(self, node: ast.Constant, statement: ast.stmt) -> Iterator[Mutation]:
        text = self._text(node)
        if isinstance(node.value, bool):
            yield self._replaced(node, str(not node.value), statement, "constant")
        elif isinstance(node.value, int | float):
            yield self._replaced(node, f"({text} + 1)", statement, "constant")
        elif isinstance(node.value, str) and node.value:
            yield self._replaced(node, f'("XX" + {text})', statement, "constant")
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


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_docstring(node: ast.AST, parent: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(parent, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )


def _is_left_out(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return any(word in ast.unparse(node.test) for word in ("TYPE_CHECKING", "__main__"))
    if isinstance(node, ast.Assign):
        return any(isinstance(name, ast.Name) and name.id == "__all__" for name in node.targets)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FOR_CHECKERS
    return isinstance(node, ast.JoinedStr | ast.pattern | ast.Import | ast.ImportFrom)
