"""Templates rendered for many cells, which differ in a few words.

A value is rendered once for each set of values of the names that it uses, and cells share the
result: nothing changes it afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

from builder.model import Where, templates
from builder.model.errors import Fault

_WORD = re.compile(r"[A-Za-z_]\w*")
T = TypeVar("T")


class Memo:
    """Results by the identity of what they were made from, which is kept alive for it."""

    def __init__(self) -> None:
        self._results: dict[Hashable, tuple[object, object]] = {}

    def of(self, make: Callable[..., T], *sources: object) -> T:
        """`make(*sources)`, made once for the same objects; `make` is a function of a module."""
        key = (make, *map(id, sources))
        entry = self._results.get(key)
        if entry is None:
            entry = self._results[key] = (make(*sources), sources)
        return cast("T", entry[0])


class Rendering:
    """Renders values of a project's files, which live as long as this does."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[str, ...]] = {}
        self._done: dict[Hashable, object] = {}

    def of(
        self, value: object, context: Mapping[str, object], where: Where, faults: list[Fault]
    ) -> Any:
        """A value for one cell; itself, and a fault, when a template in it cannot be rendered."""
        names = self._names.get(id(value))
        if names is None:
            # `sources` are the recipe's own, and no other recipe's values are this value.
            words = _words(value)
            names = tuple(name for name in context if name in words and name != "sources")
            self._names[id(value)] = names
        key = (id(value), *[context[name] for name in names])
        try:
            if key not in self._done:
                self._done[key] = templates.render(value, context)
            return self._done[key]
        except templates.TemplateError as error:
            faults.append(_fault(error, context, where))
            return value


def _words(value: object) -> frozenset[str]:
    """Every word in the templates of a value: a name that one of them uses is among them."""
    if isinstance(value, str):
        return frozenset(_WORD.findall(value)) if "{" in value else frozenset()
    if isinstance(value, Mapping):
        return frozenset().union(*map(_words, value.values()))
    if isinstance(value, (list, tuple)):
        return frozenset().union(*map(_words, value))
    return frozenset()


def _fault(error: Exception, context: Mapping[str, object], where: Where) -> Fault:
    base = getattr(context["base"], "name", "")
    return Fault(
        file=where.file,
        line=where.line,
        key=where.key,
        problem=f"the template fails for {base} {context['arch']}: {error}",
        valid=f"names: {templates.VALID_NAMES}",
    )
