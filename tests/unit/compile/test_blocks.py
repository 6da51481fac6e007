"""What hpccm's blocks take, as read from their own source."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import hpccm
import hpccm.config
import hpccm.primitives
import pytest
from hpccm.toolchain import toolchain

from builder.compile.spec import COMPILER, block_faults, catalogue
from builder.compile.spec.own_blocks import block_classes
from builder.compile.spec.rules import TOOLCHAIN_VARIABLES, TOOLCHAINS
from builder.model import BlockUse, Where

# A value that fits, by kind.
FITS: dict[str, Any] = {
    catalogue.BOOLEAN: True,
    catalogue.TEXT: "text",
    catalogue.LIST: ["text"],
    catalogue.MAPPING: {"key": "text"},
    catalogue.FLAG: "text",
    catalogue.TEXT_OR_LIST: ["text"],
    catalogue.TEXT_OR_NUMBER: 4,
    catalogue.TOOLCHAIN: {"CC": "gcc"},
}
PLACEHOLDERS = {"disable_FEATURE", "enable_FEATURE", "with_PACKAGE", "without_PACKAGE"}


def use(name: str, /, **given: Any) -> BlockUse:
    return BlockUse(
        name=name,
        arguments=given,
        where=Where(file="recipes/core.yaml", line=3, key=f"development[0].{name}"),
        lines={argument: 4 + n for n, argument in enumerate(given)},
    )


def arguments(name: str) -> set[str]:
    """The names of the arguments that a block takes."""
    found = catalogue.block_of(name)
    assert found is not None
    return set(found.kinds)


def documented(name: str) -> set[str]:
    """The names in a block's docstring, in the list under `# Parameters`."""
    text = block_classes()[name].__doc__ or ""
    listed = text.partition("# Parameters")[2].partition("# Examples")[0]
    return set(re.findall(r"^    ([a-z]\w*): ", listed, re.MULTILINE)) - PLACEHOLDERS


@pytest.mark.parametrize("name", sorted(block_classes()))
def test_documented_arguments_are_taken(name: str) -> None:
    assert documented(name) <= arguments(name)
    for argument in sorted(documented(name)):
        given = FITS[catalogue.kind(block_classes()[name], argument)]
        faults = block_faults(use(name, **{argument: given}))
        assert not [
            fault for fault in faults if "unknown" in fault.problem or "expected" in fault.problem
        ]


@pytest.mark.parametrize("name", sorted(block_classes()))
def test_no_block_takes_what_does_not_exist(name: str) -> None:
    problems = [fault.problem for fault in block_faults(use(name, no_such_argument_at_all=1))]
    assert any("no_such_argument_at_all" in problem for problem in problems)
    for word in ("Note", "installed"):  # words of the documentation that look like arguments
        assert block_faults(use(name, **{word: 1}))


def test_the_catalogue_is_of_the_installed_hpccm() -> None:
    """UPDATE_GOLDEN=1 writes it anew: for another hpccm, or another block of our own."""
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(dataclasses.asdict(catalogue.read_block(cls)))}"
        for name, cls in block_classes().items()
    )
    text = f'{{"hpccm": "{hpccm.__version__}", "blocks": {{\n{lines}\n}}}}\n'
    if os.environ.get("UPDATE_GOLDEN"):
        catalogue.CATALOGUE.write_text(text)
    assert f"hpccm {hpccm.__version__}" == COMPILER
    assert catalogue.CATALOGUE.read_text() == text
    assert catalogue.block_of("no_such_block") is None


def test_documentation_is_found_at_all() -> None:
    found = {name for name in block_classes() if documented(name)}
    assert {"openmpi", "gnu", "packages", "cmake", "ucx", "copy", "shell"} <= found
    assert len(found) > 50


def test_unknown_block_is_told_with_a_guess() -> None:
    [fault] = block_faults(use("opnmpi", version="5.0"))
    assert fault.problem == 'unknown block "opnmpi"; did you mean "openmpi"?'
    assert (fault.file, fault.line) == ("recipes/core.yaml", 3)
    assert fault.key == "development[0].opnmpi"
    assert fault.valid.startswith("valid: ")
    assert "openmpi" in fault.valid.split(": ", 1)[1].split(", ")


def test_unknown_block_like_no_other_has_no_guess() -> None:
    [fault] = block_faults(use("zzzzzzzz"))
    assert fault.problem == 'unknown block "zzzzzzzz"'


@pytest.mark.parametrize(
    ("name", "argument", "guess"),
    [
        ("openmpi", "verison", "version"),
        ("packages", "ospackage", "ospackages"),
        ("gnu", "fortan", "fortran"),
        ("ucx", "cuda_", "cuda"),
        ("copy", "dst", "dest"),
    ],
)
def test_unknown_argument_is_told_with_a_guess(name: str, argument: str, guess: str) -> None:
    [fault, *_] = block_faults(use(name, **{argument: 1}))
    said = f'unknown argument of {name} "{argument}"; did you mean "{guess}"?'
    assert fault.problem == said
    assert (fault.line, fault.key) == (4, f"development[0].{name}.{argument}")


def test_every_unknown_argument_is_told() -> None:
    faults = block_faults(use("packages", ospackages=[], ospackges=[], aptt=[]))
    assert [fault.line for fault in faults] == [5, 6]


@pytest.mark.parametrize("argument", ["with_foo", "without_foo", "enable_foo", "disable_foo"])
def test_blocks_on_configure_take_any_feature(argument: str) -> None:
    assert block_faults(use("openmpi", version="5.0.7", **{argument: True})) == []
    assert block_faults(use("packages", **{argument: True})) != []


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("openmpi", "prefix"),
        ("openmpi", "toolchain"),
        ("openmpi", "configure_opts"),
        ("openmpi", "url"),
        ("openmpi", "annotate"),
        ("cmake", "eula"),
        ("pip", "venv"),
        ("packages", "apt_ppas"),
        ("generic_cmake", "cmake_opts"),
        ("shell", "commands"),
        ("environment", "variables"),
    ],
)
def test_arguments_of_base_classes_are_found(name: str, argument: str) -> None:
    assert argument in arguments(name)


def test_what_blocks_pass_among_themselves_is_not_for_recipes() -> None:
    assert not any("base_annotation" in arguments(name) for name in block_classes())


def test_catalogue_holds_blocks_and_primitives_alone() -> None:
    names = set(block_classes())
    assert {"openmpi", "mpich", "gnu", "shell", "raw", "environment"} <= names
    assert not names & {"base", "baseimage", "bb_base", "ConfigureMake", "Stage"}


WRONG: list[tuple[str, str, Any, str]] = [
    ("gnu", "fortran", "yes", 'expected true or false, found the text "yes"'),
    ("cmake", "eula", "true", 'expected true or false, found the text "true"'),
    ("packages", "ospackages", "make", 'expected a list of texts, found the text "make"'),
    ("packages", "ospackages", ["make", 5], "expected texts in it, found the number 5"),
    ("netcdf", "version_cxx", 4.3, "expected text, found the number 4.3"),
    ("openmpi", "prefix", None, "expected text, found nothing"),
    ("openmpi", "prefix", ["/opt"], "expected text, found a list"),
    ("openmpi", "cuda", 12, "expected true, false or text, found the number 12"),
    ("openmpi", "with_pmix", ["x"], "expected true, false or text, found a list"),
    ("environment", "variables", ["A=b"], "expected a mapping, found a list"),
    ("environment", "variables", {"A": 1.1}, "expected texts in it, found the number 1.1"),
    ("openmpi", "toolchain", "gcc", 'no block "gcc" has a toolchain'),
    ("openmpi", "toolchain", {"cc": "gcc"}, "a toolchain has no cc"),
    ("openmpi", "toolchain", {"CC": 1}, "expected text for CC"),
    ("openmpi", "toolchain", 5, "expected a toolchain, found the number 5"),
    ("generic_build", "build", "make", 'expected a list of texts, found the text "make"'),
    ("ucx", "parallel", [4], "expected text or a whole number, found a list"),
]


@pytest.mark.parametrize(("name", "argument", "value", "problem"), WRONG)
def test_a_value_of_another_type_is_a_fault(
    name: str, argument: str, value: Any, problem: str
) -> None:
    faults = block_faults(use(name, **{argument: value}))
    [fault] = [fault for fault in faults if fault.key.endswith(f".{argument}")]
    assert fault.problem == problem
    assert fault.line == 4
    assert fault.valid


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("gnu", "fortran", "{{ arch == 'x86_64' }}"),
        ("packages", "ospackages", "{{ mpi.development }}"),
        ("packages", "ospackages", ["make", "{{ mpi.development }}"]),
    ],
)
def test_a_template_has_no_type_before_it_is_rendered(name: str, argument: str, value: Any) -> None:
    assert block_faults(use(name, **{argument: value})) == []


def test_the_advice_shows_how_it_is_written() -> None:
    [fault] = block_faults(use("packages", ospackages="make"))
    assert fault.valid == "valid: [make]"
    [fault] = block_faults(use("netcdf", version="4.9", version_cxx=4.3))
    assert fault.valid == 'write it in quotes: "4.3"'


def test_every_version_is_the_recipes_own() -> None:
    """Each block of hpccm's with a version of its own asks for one, and says hpccm's."""
    exempt = {"gnu", "llvm"}
    for name, cls in block_classes().items():
        taken = catalogue.default(cls, "version")
        problems = [fault.problem for fault in block_faults(use(name))]
        if "version" in documented(name) and name not in exempt:
            assert any(
                f"{name} needs a version: hpccm would take {taken}" in one for one in problems
            )
        for source in {"version", "url"} & documented(name):
            problems = [fault.problem for fault in block_faults(use(name, **{source: "1.2"}))]
            assert not any(f"{name} needs a version" in one for one in problems)


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("llvm", {"upstream": True}, "llvm needs a version"),
        ("gnu", {"source": True}, "gnu needs a version"),
        ("nccl", {"version": "2.22.3-1"}, "nccl needs cuda or build: hpccm would take 13.2"),
        ("nvhpc", {"version": "24.1"}, "nvhpc needs cuda"),
        ("multi_ofed", {}, "multi_ofed needs mlnx_versions"),
        ("ucx", {"repository": True}, "ucx needs a commit or a branch"),
        ("xpmem", {}, "xpmem needs a commit or a branch"),
    ],
)
def test_what_else_decides_on_a_version_is_asked_for(
    name: str, given: dict[str, Any], problem: str
) -> None:
    assert any(fault.problem.startswith(problem) for fault in block_faults(use(name, **given)))


@pytest.mark.parametrize(
    ("name", "version", "asks"),
    [
        ("conda", "4.7.12", False),
        ("conda", "4.8.3", True),
        ("hpcx", "2.5.0", False),
        ("hpcx", "2.17", True),
    ],
)
def test_old_releases_are_named_by_their_version_alone(name: str, version: str, asks: bool) -> None:
    given = {"version": version, **({"eula": True} if name == "conda" else {})}
    assert bool(block_faults(use(name, **given))) is asks


def test_a_package_beside_the_recipe_is_told_in_one_line() -> None:
    for given in ({}, {"version": "2.10.1-3"}):
        [fault] = block_faults(use("nvshmem", package="nvshmem.tar.gz", **given))
        assert fault.problem.startswith('"nvshmem.tar.gz" is a file beside the recipe')


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"from": "elsewhere", "src": "/a", "dest": "/a"}, 'there is no stage "elsewhere"'),
        (
            {"from": "development", "src": "a", "dest": "/a"},
            '"a" is not an absolute path in that stage',
        ),
        ({"from": "development", "dest": "/a"}, "copy needs src and dest, or files"),
        ({"from": "development", "src": "/a", "dest": "/a"}, "the development stage cannot copy"),
    ],
)
def test_a_copy_is_from_the_development_stage_alone(given: dict[str, str], problem: str) -> None:
    found = [fault.problem for fault in block_faults(use("copy", **given))]
    assert any(text.startswith(problem) for text in found)
    at_run_time = dataclasses.replace(
        use("copy", **{"from": "development", "src": "/a", "dest": "/b"}),
        where=Where(file="recipes/core.yaml", line=3, key="runtime[0].copy"),
    )
    assert block_faults(at_run_time) == []


def test_what_is_valid_is_what_a_recipe_can_name() -> None:
    [fault] = block_faults(use("nothing-of-the-kind"))
    listed = fault.valid.removeprefix("valid: ").split(", ")
    assert {"gnu", "cuda", "mpi", "shell"} <= {*listed}
    assert not {"comment", "user", "workdir", "scif"} & {*listed}


def test_an_argument_of_pip_with_a_blank_is_two() -> None:
    """Each is quoted: pip would look for an option of that name."""
    [fault] = block_faults(use("pip", install_args=["--index-url https://a.example"]))
    assert fault.problem == '"--index-url https://a.example" is one argument with a blank in it'
    assert fault.valid == "valid: [--index-url, https://a.example]"
    fine = ["--index-url=https://a.example", "--index-url", "https://a.example", "{{ a }} b"]
    assert block_faults(use("pip", install_args=fine)) == []


def test_why_scif_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of docs/recipes.md's reasons: where one no longer holds, it may be for recipes."""
    monkeypatch.chdir(tmp_path)
    texts, copies = {}, []
    for container_format in ("docker", "singularity"):
        hpccm.config.set_container_format(container_format)
        app = block_classes()["scif"](name="hello")
        app += hpccm.primitives.shell(commands=["make"])
        texts[container_format] = str(app)
        copies.append(app.runtime())
    assert "RUN scif install" in texts["docker"]
    assert texts["singularity"].startswith("%appinstall hello")
    assert (tmp_path / "hello.scif").exists()
    assert copies[-1] == ""


@pytest.mark.parametrize("name", ["gnu", "llvm", "python", "packages", "pip"])
def test_packages_of_the_distribution_need_no_version(name: str) -> None:
    assert block_faults(use(name)) == []


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("raw", {"docker": "USER x"}, "raw without singularity: the two formats would differ"),
        ("raw", {"singularity": "%help"}, "raw without docker: the two formats would differ"),
        ("shell", {}, "shell without commands"),
        ("shell", {"commands": ["ls"], "_arguments": "--mount=type=cache"}, "this holds for one"),
        ("copy", {"src": "a", "dest": "/b", "_chown": "me"}, "this holds for one"),
        ("copy", {"src": "a", "dest": "/b", "_from": "base"}, "this holds for one"),
        ("copy", {"src": "a"}, "copy needs src and dest, or files"),
        ("copy", {"src": "a", "dest": "/tmp/a"}, "Singularity cannot copy files to /tmp/a"),
        ("copy", {"files": {"a": "/var/tmp/"}}, "Singularity cannot copy files to /var/tmp/"),
        ("copy", {"src": "a", "dest": "b"}, '"b" is not an absolute path'),
        ("user", {"user": "me"}, "user is not for recipes"),
        ("workdir", {"directory": "/x"}, "workdir is not for recipes"),
        ("scif", {"name": "x"}, "scif is not for recipes: the formats would have other files"),
        ("generic_build", {"package": "a.tar.gz"}, '"a.tar.gz" is a file beside the recipe'),
        (
            "mvapich2",
            {"version": "4.0"},
            "hpccm would fetch mvapich2-4.0.tar.gz, and it is mvapich",
        ),
        ("pgi", {"tarball": "pgi.tar.gz"}, '"pgi.tar.gz" has no checksum'),
        ("hpcx", {"version": "2.5"}, 'HPC-X "2.5" has three numbers in its files\' names'),
    ],
)
def test_what_the_two_formats_would_not_have_both_is_a_fault(
    name: str, given: dict[str, Any], problem: str
) -> None:
    assert any(fault.problem.startswith(problem) for fault in block_faults(use(name, **given)))


def test_raw_with_both_formats_is_fine_though_one_is_empty() -> None:
    assert block_faults(use("raw", docker="USER x", singularity="")) == []


@pytest.mark.parametrize("name", ["cuda", "mpi"])
def test_toolkits_are_the_plans(name: str) -> None:
    assert block_faults(use(name, anything=1)) == []


def test_toolchains_are_those_of_hpccm() -> None:
    assert set(TOOLCHAIN_VARIABLES) == set(toolchain.__attrs__)
    for name in TOOLCHAINS:
        assert re.search(r"self\.toolchain ?=", catalogue.source_of(block_classes()[name])), name
