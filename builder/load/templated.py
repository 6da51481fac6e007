"""Try every template in the input files when they are loaded, before a cell needs it."""

from __future__ import annotations

from builder.load.document import Faults, Node
from builder.load.readers import any_text
from builder.model import templates

_NAMES = templates.sample_names()
# For a missing attribute jinja2 names the type of the value; a template's author knows it as `mpi`
_TYPES = {
    f"'{type(value).__module__}.{type(value).__name__} object'": name
    for name, value in _NAMES.items()
}
_VALID = f"valid: {templates.VALID_NAMES}"


def templated(node: Node, faults: Faults) -> str:
    """Read text that may contain templates and must render to text."""
    value = any_text(node, faults)
    rendered = _attempt(value, node, faults)
    if not isinstance(rendered, str):
        kind = "a list" if isinstance(rendered, list) else f"the value {rendered}"
        faults.add(
            node.where,
            f"the template renders to {kind}, expected text",
            "put it into a longer text, or add a filter such as | join(' ')",
        )
    return value


def templated_line(node: Node, faults: Faults) -> str:
    """Read one line of text that may contain templates: the value of a variable or a label."""
    value = templated(node, faults)
    if "\n" in value.strip():
        faults.add(node.where, "this text has several lines", "write it in one line")
    return value


def try_templates(node: Node, faults: Faults) -> None:
    """Report each string at or below `node` that does not render."""
    for scalar in node.scalars():
        if isinstance(scalar.value, str):
            _attempt(scalar.value, scalar, faults)


def _attempt(value: str, node: Node, faults: Faults) -> object:
    try:
        return templates.render(value, _NAMES)
    except templates.TemplateError as error:
        problem = str(error)
        for shown, name in _TYPES.items():
            problem = problem.replace(shown, name)
        faults.add(node.where, f"the template cannot be rendered: {problem}", _VALID)
        return ""
