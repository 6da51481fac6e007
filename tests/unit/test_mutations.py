"""Mutations are of what runs, each is valid Python, and no two are the same."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from covering import Coverage
from mutant_runs import PROJECT, Mutant, changed_in_place, key_of
from mutations import mutations
from samples import ROOT

SOURCE = b'''\
"""A docstring."""
from typing import TYPE_CHECKING
__all__ = ["f"]
if TYPE_CHECKING:
    A = 1


@decorated(slots=True)
def f(x: "int", *, deep: bool = False) -> "str | None":
    """Another."""
    if x > 3 and not deep:
        return "many"
    kept = [y for y in range(x) if y]
    return None if kept else f"few {x + 1}"
'''


def _changes(source: str) -> list[str]:
    return [one.describe(source.encode()) for one in mutations(source.encode())]


def test_every_kind_is_there_and_nothing_else() -> None:
    assert _changes(SOURCE.decode()) == [
        "constant: False -> True",
        "negated: x > 3 and not deep -> (not (x > 3 and not deep))",
        "operator: and -> or",
        "operator: > -> >=",
        "constant: 3 -> (3 + 1)",
        "not left out: not deep -> (deep)",
        'returned: "many" -> None',
        'constant: "many" -> ("XX" + "many")',
        "negated: y -> (not (y))",
        'returned: None if kept else f"few {x + 1}" -> None',
        "negated: kept -> (not (kept))",
    ]


def test_each_changes_the_source_into_other_valid_python() -> None:
    source = (ROOT / "builder/system/locks.py").read_bytes()
    before = ast.dump(ast.parse(source))
    assert len(mutations(source)) > 10
    for mutation in mutations(source):
        changed = ast.dump(ast.parse(mutation.apply(source)))
        assert changed != before, mutation.describe(source)
        assert mutation.lines


@pytest.mark.parametrize(
    ("source", "change"),
    [
        ("def f() -> bool:\n    return g()", "negated: g() -> (not (g()))"),
        ("def f() -> bool:\n    return a == b", "operator: == -> !="),
        ("def f() -> bool:\n    return True", "constant: True -> False"),
        ("def f() -> int:\n    return 0", "constant: 0 -> (0 + 1)"),
        ("def f() -> list[str]:\n    return []", 'returned: [] -> ["XX"]'),
        ("_LOOK_S = 5.0", "constant: 5.0 -> 0"),
        ("_LOOK_S = (5.0, x)", "constant: 5.0 -> 0"),
        ("def f(*, timeout_s: float = 20): ...", "constant: 20 -> 0"),
        ("run(timeout=2)", "constant: 2 -> 0"),
        ("used_s = 0.0", "constant: 0.0 -> (0.0 + 1)"),
        ("text.lstrip('/')", "constant: '/' -> \"X\""),
        ("text.removeprefix('/')", "constant: '/' -> (\"XX\" + '/')"),
        ("_MOST = 5", "constant: 5 -> (5 + 1)"),
    ],
)
def test_a_change_that_is_one(source: str, change: str) -> None:
    """None is as false as False, and another second is only a longer wait."""
    assert _changes(source) == [change]


@pytest.mark.parametrize(
    "source",
    [
        *("def f():\n    return None", "raise AssertionError(1)", "X: TypeAlias = 'a'"),
        *("dumps(x, indent=2)", "_CHUNK = 1 << 20", "file.read(1 << 16)", "sleep(0.1)"),
        *("answer.iter_content(1 << 20)", "x = len(sched_getaffinity(0))", "_SHOWN = 5"),
    ],
)
def test_nothing_that_no_test_can_notice(source: str) -> None:
    assert _changes(source) == []


@pytest.mark.parametrize(
    "source",
    [
        "raise BadInput('no image')",
        "raise BadInput(f'{x}: ' + 'no image')",
        "f(hint='run it --again')",
        "_HINT = 'run: build-images lock'",
        "refused('the image is too old')",
        "def f():\n    return g() or 'it is not there'",
        "_X = 'none of the images' if f else g",
        "_TEXTS = {A: 'none of the images'}",
    ],
)
def test_prose_is_not_broken(source: str) -> None:
    assert "XX" not in "".join(_changes(source))


@pytest.mark.parametrize(
    "source",
    [
        *("x == 'no space left on device'", "x in 'no space left'", "y = x['no space left']"),
        *("re.compile('no space left')", "x.startswith('no space left')"),
        *("y = {'no space left': 1}", "y = ('no space left', 'read only')", "y = 'not proven'"),
        *("VERDICT = 'no space left'", "f('yum install -y epel')", "f('git clone ')", "f('image')"),
        *("f(name='model name')", "y = a if 'no space left' else b"),
    ],
)
def test_what_is_looked_up_by_is_no_prose(source: str) -> None:
    assert "XX" in "".join(_changes(source))


LOADED = """\
LIMIT = 3


def outer(number, *, limit=5):
    def inner():
        return number > limit
    return [inner() for _ in range(1)]


class Box:
    def size(self):
        return 7
"""


@pytest.mark.parametrize(
    ("old", "new", "values"),
    [
        ("number > limit", "number >= limit", ([True], 7)),  # nested in what is loaded
        ("range(1)", "range(2)", ([False, False], 7)),
        ("return 7", "return 8", ([False], 8)),
        ("LIMIT = 3", "LIMIT = 4", None),  # the module's own code
        ("limit=5", "limit=4", None),
    ],
)
def test_functions_that_are_loaded_are_changed_and_nothing_else(
    old: str, new: str, values: tuple[list[bool], int] | None
) -> None:
    names: dict[str, Any] = {}
    exec(compile(LOADED, str(PROJECT / "builder/made.py"), "exec"), names)
    functions = [names["outer"], names["Box"].size]
    mutant = Mutant(
        file="builder/made.py",
        source=LOADED.encode(),
        changed=LOADED.replace(old, new).encode(),
        tests=(),
        is_run_at_import=False,
    )
    is_changed = changed_in_place(mutant, {key_of(one.__code__): [one] for one in functions})
    assert is_changed == (values is not None)
    assert (names["outer"](5), names["Box"]().size()) == (values or ([False], 7))


@pytest.mark.parametrize("during", ["", "tests/unit/system/test_locks.py::test_b"])
def test_a_table_is_covered_by_the_tests_that_import_it(during: str) -> None:
    """Its lines run in no test, or in one during which its module happens to be imported."""
    table, importing = (
        "builder/trust/policy/site_policy.py",
        "tests/unit/trust/test_policy_reading.py",
    )
    coverage = Coverage()
    coverage.add(
        {
            "lines": {during: {table: [17]}},
            "seconds": {
                f"{importing}::test_a": 2.0,
                "tests/unit/system/test_locks.py::test_b": 1.0,
            },
        }
    )
    assert coverage.tests_of(table, range(17, 18))[0] == f"{importing}::test_a"
