"""Templates: types kept, lists spliced, and every fault a `TemplateError`."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import base

from builder import facts
from builder.model import Cell, PackagedCuda, PlannedCuda, PlannedMpi, templates
from builder.model.templates import TemplateError, render

NAMES = templates.sample_names()
MPI = PlannedMpi(
    family="openmpi",
    version="5.0.7",
    route="package",
    development=("libmpi-dev",),
    runtime=("mpi-bin",),
)
CUDA = PlannedCuda(
    version="12.4",
    update="12.4.1",
    driver="525.60.13",
    route="image",
    capabilities=("70", "80"),
    packages=PackagedCuda(version="12.4.1", development=(), runtime=(), gcc="12"),
)
CELL = Cell(
    recipe="core", recipe_version="1.0", base="debian13", cuda="none", mpi="none", arch="ppc64le"
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ mpi.development }}", ["mpi-dev"]),
        (" {{ 2 + 1 }}\n", 3),
        ("{{ arch == 'x86_64' }}", True),
        ("{{ 1.5 }}", 1.5),
        ("{{ '}' }}", "}"),
        ("{{ mpi.version }}", "5.0.7"),
    ],
)
def test_a_whole_expression_keeps_its_type(text: str, value: Any) -> None:
    found = render(text, NAMES)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ arch }}-{{ cuda.version }}", "x86_64-12.4"),
        ("n={{ 3 }}", "n=3"),
        ("{{ 1 }}{{ 2 }}", "12"),
        ("{% if arch == 'x86_64' %}yes{% endif %}\n", "yes\n"),
        ("${HOME} { } %", "${HOME} { } %"),
        ("no template", "no template"),
    ],
)
def test_everything_else_is_text(text: str, value: str) -> None:
    assert render(text, NAMES) == value


def test_a_list_in_a_list_is_spliced() -> None:
    assert render(["make", "{{ mpi.development }}", "cmake"], NAMES) == ["make", "mpi-dev", "cmake"]
    assert render(["{{ [] }}"], NAMES) == []
    assert render(("a", ["b", "c"]), NAMES) == ["a", "b", "c"]


def test_a_list_as_a_value_is_not_spliced() -> None:
    given = {"ospackages": "{{ mpi.runtime }}", "inner": {"arch": "{{ arch }}"}}
    assert render(given, NAMES) == {"ospackages": ["mpi"], "inner": {"arch": "x86_64"}}


@pytest.mark.parametrize("value", [1, True, None, 1.5])
def test_other_values_are_left_alone(value: Any) -> None:
    assert render({"key": [value]}, NAMES) == {"key": [value]}


def test_names_in_mappings_are_no_templates() -> None:
    assert render({"{{ arch }}": "x"}, NAMES) == {"{{ arch }}": "x"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ nothing }}", "'nothing' is undefined"),
        ("{{ mpi.nothing }}", "no attribute 'nothing'"),
        ("a {{ nothing }}", "'nothing' is undefined"),
        ("a {{ base.nothing }} b", "no attribute 'nothing'"),
        ("{{ [nothing] }}", "'nothing' is undefined"),
        ("{{ mpi.nothing.deeper }}", "no attribute 'nothing'"),
    ],
)
def test_a_name_that_does_not_exist_is_a_fault(text: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        render({"key": [text]}, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ arch() }}",
        "{{ mpi.launch() }}",
        "{{ [][1:2].x() }}",
        "x {{ 1 // 0 }}",
        "{{ 1 +",
        "{% if %}",
        "{{ '%d' % 'x' }}",
        "{{ 'x' | no_such_filter }}",
        "{% include 'file' %}",
        "{{ range(10 ** 20) | list }}",
    ],
)
def test_whatever_an_expression_raises_is_a_fault(text: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(text, NAMES)
    assert str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("text", ["{{ mpi }}", "{{ mpi.launch }}", "{{ {} }}", "{{ none }}"])
def test_a_value_that_yaml_could_not_hold_is_a_fault(text: str) -> None:
    with pytest.raises(TemplateError, match="not text or a list"):
        render(text, NAMES)


def test_names_of_a_cell() -> None:
    names = templates.names(CELL, base(), MPI)
    text = "{{ recipe.name }} {{ recipe.version }} {{ arch }} {{ cuda.version }}"
    assert render(text, names) == "core 1.0 ppc64le none"
    assert render("{{ base.distribution }}{{ base.version }}", names) == "debian13"
    assert render("{{ mpi.family }} {{ mpi.version }}", names) == "openmpi 5.0.7"
    launch = facts.MPI_FAMILIES["openmpi"].launch.format(ranks=4)
    assert render("{{ mpi.launch(4) }} x", names) == f"{launch} x"
    library = facts.MPI_FAMILIES["openmpi"].library.format(version="5.0.7")
    assert render("{{ mpi.library }} {{ mpi.route }}", names) == f"{library} package"


def test_names_of_a_cuda() -> None:
    names = templates.names(dataclasses.replace(CELL, cuda="12.4"), base(), None, CUDA)
    text = "{{ cuda.version }} {{ cuda.dashed }} {{ cuda.route }} {{ cuda.gcc }} {{ cuda.driver }}"
    assert render(text, names) == "12.4 12-4 image 12 525.60.13"
    assert render("{{ cuda.gencode }}", names) == (
        "-gencode arch=compute_70,code=sm_70 -gencode arch=compute_80,code=sm_80 "
        "-gencode arch=compute_80,code=compute_80"
    )


def test_names_without_an_mpi() -> None:
    names = templates.names(CELL, base(), None)
    given = ["{{ mpi.family }}", "{{ mpi.development }}", "{{ mpi.launch(4) }}"]
    assert render(given, names) == ["none", ""]
    rest = "[{{ mpi.library }}{{ mpi.route }}{{ cuda.route }}{{ cuda.gencode }}{{ cuda.gcc }}]"
    assert render(rest, names) == "[]"


def test_sample_names_have_the_shape_of_real_ones() -> None:
    real = templates.names(CELL, base(), MPI)
    assert NAMES.keys() == real.keys()
    assert all(isinstance(value, type(real[name])) for name, value in NAMES.items())


def test_every_valid_name_is_one() -> None:
    for name in templates.VALID_NAMES.replace("(RANKS)", "(2)").split(", "):
        assert render(f"{{{{ {name} }}}}", NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ mpi.launch.__func__.__globals__ }}",
    ],
)
def test_a_template_reaches_nothing_of_the_host(text: str) -> None:
    with pytest.raises(TemplateError):
        render(text, templates.sample_names())


PIECES = (
    *("{{ arch }}", "{{mpi.version}}", "{{ mpi.development }}", "{{ mpi.launch }}", "{{ gone }}"),
    *("{{ sources.a.url }}", "{{ sources }}", "{{ base.name.upper }}", "{{ arch.a.b }}"),
    *("{{ arch._x }}", "{{- arch }}", "{% if arch %}", "{% endif %}", "{#", "#}", "{", "}", "}}"),
    *(" ", "\n", "\r\n", "$", "text", "{{ mpi.__class__ }}", "{{\tarch }}", "{{ true }}"),
    *("{{ none }}", "{{ not }}"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=5).map("".join))
def test_a_text_is_rendered_or_refused(text: str) -> None:
    with contextlib.suppress(TemplateError):
        render(text, NAMES)
