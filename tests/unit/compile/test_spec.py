"""Specs: golden files, and what compiling must refuse.

UPDATE_GOLDEN=1 writes the golden files anew: read the difference.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import hpccm.config
import pytest
from golden_cells import CELLS, golden_images
from samples import (
    EVERYTHING,
    GOLDEN,
    MPI,
    ROOT,
    base,
    block,
    check,
    compare_with_golden,
    image,
    project,
    recipe,
    where,
)
from spython.main.parse.parsers import DockerParser, SingularityParser

from builder.compile.lint.reading import read_dockerfile
from builder.compile.spec import compile_spec, hpccm_blocks
from builder.compile.spec.driver import dockerfile, singularity
from builder.model import PlannedImage, Spec
from builder.model.errors import BadInput
from builder.plan import make_plan

IDENTIFIERS = list(CELLS)
RUN_CHECKS = (ROOT / "tests/images/run-checks").read_text()

HEADER = 3  # lines of comments at the top
CMAKE = block("cmake", version="3.30.0", eula=True)

COMPILE = """
import hashlib, sys
from pathlib import Path
from builder.compile import spec
from builder.load.project import load_project
from builder.model import Selection
from builder.plan import make_plan

PATTERNS = {"recipe": ("hpc-base", "cuda-base"), "arch": ("ppc64le",), "mpi": ("openmpi",)}
root = Path(sys.argv[1])
project = load_project(root, block_faults=spec.block_faults)
plan = make_plan(project, Selection(patterns=PATTERNS), compiler=spec.COMPILER)
digest = hashlib.sha256()
for image in plan.images:
    made = spec.compile_spec(image, run_checks="text")
    texts = [image.content_key, made.dockerfile, made.singularity]
    texts += [f"{name} {text}" for name, text in made.files.items()]
    digest.update("\\0".join(texts).encode())
print(digest.hexdigest())
"""


def compiled(one: PlannedImage) -> Spec:
    return compile_spec(one, run_checks=RUN_CHECKS)


@functools.cache
def shipped(identifier: str) -> Spec:
    return compiled(golden_images()[identifier])


def tiny(root: Path, **parts: Any) -> PlannedImage:
    return image(root, **parts)


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_golden(identifier: str) -> None:
    spec = shipped(identifier)
    compare_with_golden(spec.dockerfile, f"spec/{identifier}/Dockerfile")
    compare_with_golden(spec.singularity, f"spec/{identifier}/Singularity.def")


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_each_instruction_is_known_by_the_place_it_comes_from(identifier: str) -> None:
    spec = shipped(identifier)
    origins = [spec.origin_of(part.line) for part in read_dockerfile(spec.dockerfile).parts]
    assert all(origin and origin.line > 0 for origin in origins)
    lines = spec.dockerfile.splitlines()
    for number, line in enumerate(lines, start=1):
        if line:  # else it is between two instructions, of one block or of two
            assert (spec.origin_of(number) is None) == (number <= HEADER), line


def test_instructions_come_from_blocks_checks_and_the_base(tmp_path: Path) -> None:
    parent = recipe("core", development=(block("gnu", line=7), block(line=9, ospackages=["a"])))
    child = recipe(
        "one",
        parent="core",
        development=(block("shell", line=8, commands=["make all"]),),
        runtime=(block("shell", line=11, commands=["ldconfig"]),),
        environment={"A": "b"},
        checks=("hello", "other"),
    )
    other = check("other", build=("cc other",), where=where("c.yaml", 4, "checks.other"))
    made = project(
        tmp_path,
        recipes=[parent, child],
        checks=[check(where=where("c.yaml", 2, "checks.hello")), other],
        bases=[base(prepare=("enable",))],
    )
    spec = compiled(make_plan(made, EVERYTHING, compiler="hpccm 1").images[-1])
    shown = [
        f"{part.name} {part.value[-11:].strip()} < {origin} {origin.key}".strip()
        for part in read_dockerfile(spec.dockerfile).parts
        if (origin := spec.origin_of(part.line))
    ]
    base_place, gnu = "base-images/debian13.yaml:1", "recipes/core.yaml:7 development[0].gnu"
    checks = "c.yaml:2 checks.hello, checks.other"
    assert shown == [
        f"FROM development < {base_place}",
        f"RUN enable < {base_place}",
        f"RUN apt/lists/* < {gnu}",
        "RUN apt/lists/* < recipes/core.yaml:9 development[0].packages",
        f"FROM development < {base_place}",
        "RUN make all < recipes/core.yaml:8 development[0].shell",
        f"COPY images/src/ < {checks}",
        f"RUN cc other < {checks}",
        f"FROM AS runtime < {base_place}",
        f"RUN enable < {base_place}",
        f"RUN apt/lists/* < {gnu}",
        "RUN ldconfig < recipes/core.yaml:11 development[0].shell",
        "ENV A=b < recipes/one.yaml:1",
    ] + [one for one in shown[13:] if one.endswith("recipes/one.yaml:1")]


def test_each_golden_folder_has_its_cell() -> None:
    assert sorted(path.name for path in (GOLDEN / "spec").iterdir()) == sorted(IDENTIFIERS)


def test_same_bytes_in_any_process_and_folder(tmp_path: Path) -> None:
    digests = set()
    for seed, folder in (("1", tmp_path), ("2", ROOT)):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "TZ": "JST-9"}
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, str(ROOT)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.strip())
    digests.add(_digest_here())
    assert len(digests) == 1


def _digest_here() -> str:
    namespace: dict[str, Any] = {}
    arguments, sys.argv = sys.argv, ["compile", str(ROOT)]
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            exec(COMPILE, namespace)
    finally:
        sys.argv = arguments
    return output.getvalue().strip()


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_other_tools_can_read_the_specs(identifier: str, tmp_path: Path) -> None:
    spec = shipped(identifier)
    (tmp_path / "Dockerfile").write_text(spec.dockerfile)
    # spython reads definitions that start from a registry, and no others
    definition_text = spec.singularity.replace("BootStrap: oci-archive", "BootStrap: docker")
    (tmp_path / "Singularity.def").write_text(definition_text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        docker = DockerParser(str(tmp_path / "Dockerfile")).parse()
        definition = SingularityParser(str(tmp_path / "Singularity.def")).parse()
    image = golden_images()[identifier]
    assert len(docker) == len(image.stages) + 1
    assert list(definition)[-1] == "runtime"
    if image.checks:
        assert any("/opt/build-images/run-checks" in line for line in definition["runtime"].install)
    last = list(docker.values())[-1]
    assert any("build-images.identifier" in str(one) for one in last.labels)
    if image.stages[-1].runtime:
        assert any(re.search("(apt-get|yum) install", line) for line in last.install)


def test_a_base_from_a_registry_is_named_in_both(tmp_path: Path) -> None:
    reference = "registry.example.org/debian:13"
    made = compiled(tiny(tmp_path, bases=[base(bootstrap=None, references={"x86_64": reference})]))
    assert made.dockerfile.count(f"FROM {reference} AS ") == 2
    assert made.singularity.count(f"BootStrap: docker\nFrom: {reference}\n") == 2


def test_neither_format_leaks_into_the_next() -> None:
    one = golden_images()["hpc-base-1.0-rockylinux9-mpich4.1-aarch64"]
    first = dockerfile(one), singularity(one)
    again = singularity(one), dockerfile(one), dockerfile(one)
    assert again == (first[1], first[0], first[0])


def test_no_cell_leaks_into_the_next() -> None:
    images = list(golden_images().values())
    alone = {one.identifier: compiled(one) for one in images}
    for one in reversed(images):
        assert compiled(one) == alone[one.identifier]


def test_hpccm_gets_its_own_copy_of_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hpccm's ucx adds to the flags of the toolchain that it is given, and others to lists."""

    class Adds:
        def __init__(self, commands: list[str]) -> None:
            commands.append("more")
            self._text = "RUN " + " ".join(commands)

        def __str__(self) -> str:
            return self._text

    one = tiny(tmp_path, recipes=[recipe(development=(block("shell", commands=["ls"]),))])
    monkeypatch.setattr(hpccm_blocks, "block_classes", lambda: {"shell": Adds})
    assert dockerfile(one) == dockerfile(one)
    assert one.stages[0].development[0].arguments == {"commands": ["ls"]}


def test_state_that_others_left_in_hpccm_does_not_matter(tmp_path: Path) -> None:
    one = tiny(tmp_path, recipes=[recipe(development=(CMAKE,))])
    expected = compiled(one)
    hpccm.config.set_linux_distro("rockylinux9")
    hpccm.config.set_cpu_architecture("aarch64")
    hpccm.config.set_singularity_version("2.6")
    hpccm.config.set_cpu_target("skylake")
    hpccm.config.set_working_directory("/elsewhere")
    assert compiled(one) == expected


def test_warnings_of_hpccm_are_bad_input(tmp_path: Path) -> None:
    one = tiny(
        tmp_path, recipes=[recipe(development=(block("shell", commands=["ls"], chdir=True),))]
    )
    handlers = list(logging.getLogger().handlers)

    class Warns:
        def __init__(self, **_: Any) -> None:
            logging.warning("this is deprecated")

        def __str__(self) -> str:
            return "RUN true"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hpccm_blocks, "block_classes", lambda: {"shell": Warns})
        with pytest.raises(BadInput, match="hpccm warns: this is deprecated") as caught:
            compiled(one)
    assert caught.value.exit_code == 2
    [fault] = caught.value.faults
    assert (fault.file, fault.line) == ("recipes/core.yaml", 5)
    assert logging.getLogger().handlers == handlers


REFUSED: dict[str, dict[str, Any]] = {
    "generic_cmake": {},  # it names no source
    "openmpi": {"version": "newest"},
    "hdf5": {"version": "newest"},
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_block_that_hpccm_refuses_is_bad_input_at_its_line(name: str, tmp_path: Path) -> None:
    blocks = (block(ospackages=["make"]), block(name, line=41, **REFUSED[name]))
    one = tiny(tmp_path, recipes=[recipe(development=blocks)])
    for compiling in (dockerfile, singularity):
        with pytest.raises(BadInput) as caught:
            compiling(one)
        [fault] = caught.value.faults
        assert (fault.file, fault.line) == ("recipes/core.yaml", 41)
        assert fault.key == f"development[0].{name}"
        assert fault.problem.startswith("hpccm refuses this block: ")
        assert f"recipes/core.yaml:41: development[0].{name}" in str(caught.value)


MISTYPED: dict[str, tuple[str, Any]] = {
    "environment": ("variables", ["A=b"]),
    "gdrcopy": ("runtime", 5),
    "copy": ("files", "x"),
    "packages": ("ospackages", "make"),
}


@pytest.mark.parametrize("name", sorted(MISTYPED))
def test_what_a_template_gives_is_of_the_right_type(name: str, tmp_path: Path) -> None:
    """The loader cannot know; the fault is the same as its own."""
    argument, value = MISTYPED[name]
    blocks = (block(name, line=41, **{argument: value}), block("gnu", line=51, cc="yes"))
    one = tiny(tmp_path, recipes=[recipe(development=blocks)])
    with pytest.raises(BadInput) as caught:
        compiled(one)
    first, second = caught.value.faults
    assert (first.line, second.line) == (42, 52)
    assert first.key == f"development[0].{name}.{argument}"
    assert first.problem.startswith("expected ")
    assert second.problem == 'expected true or false, found the text "yes"'


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le"])
def test_a_block_that_asks_for_the_cpu_is_compiled_for_any(arch: str, tmp_path: Path) -> None:
    given = recipe(development=(block("fftw", version="3.3.10"),))
    text = compiled(tiny(tmp_path, recipes=[given], arch=(arch,))).dockerfile
    assert ("--enable-sse2" in text) is (arch == "x86_64")
    assert "--enable-avx" not in text


def test_checks_come_with_their_scripts_and_sources(tmp_path: Path) -> None:
    made = compiled(
        tiny(
            tmp_path,
            recipes=[recipe(checks=("hello", "ok"))],
            checks=[check(), check("ok", sources=(), build=(), run="true", timeout_s=7)],
        )
    )
    assert list(made.files) == [
        "files/checks/10-hello",
        "files/checks/20-ok",
        "files/run-checks",
        "files/src/hello.c",
        "files/host-contract.json",
    ]
    script = made.files["files/checks/20-ok"].splitlines()
    assert script[:3] == [
        "#!/bin/sh",
        "# the check ok",
        "# at most 7 s; exit status: 0 passed, 77 skipped, else failed",
    ]
    assert "PATH=/opt/build-images/bin:$PATH" in script[3]
    assert script[-1] == "true"
    assert made.files["files/run-checks"] == RUN_CHECKS
    assert "cc -o $OUT/hello $SRC/hello.c" in made.dockerfile
    assert "%test\n    /opt/build-images/run-checks\n" in made.singularity


def test_checks_keep_their_order_where_names_are_sorted(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(12)]
    checks = [check(name, sources=(), build=(), run="true") for name in names]
    made = compiled(tiny(tmp_path, recipes=[recipe(checks=tuple(names))], checks=checks))
    scripts = sorted(name for name in made.files if name.startswith("files/checks/"))
    assert [name.partition("-")[2] for name in scripts] == names
    assert scripts[0] == "files/checks/010-c0"


def test_a_source_of_several_checks_is_copied_once(tmp_path: Path) -> None:
    checks = [check("one"), check("two", sources=("one.c",))]
    made = compiled(tiny(tmp_path, recipes=[recipe(checks=("one", "two"))], checks=checks))
    assert made.dockerfile.count("files/src/one.c") == 1


@pytest.mark.parametrize("sources", [(), ("ok.sh",)])
def test_what_checks_consist_of_is_copied_only_where_there_is_any(
    sources: tuple[str, ...], tmp_path: Path
) -> None:
    """A folder that the development stage does not have ends the build."""
    checks = [check("ok", sources=sources, build=(), run="true")]
    made = compiled(tiny(tmp_path, recipes=[recipe(checks=("ok",))], checks=checks))
    copies = [text for text in made.dockerfile.splitlines() if "COPY --from=" in text]
    assert any("/opt/build-images" in text for text in copies) is bool(sources)
    assert "/opt/build-images/checks" in made.dockerfile


def test_an_image_without_checks_has_no_test(tmp_path: Path) -> None:
    made = compiled(tiny(tmp_path))
    assert "%test" not in made.singularity
    assert "run-checks" not in made.dockerfile + made.singularity
    assert "%runscript" in made.singularity


def test_environment_and_labels_of_a_child_win(tmp_path: Path) -> None:
    given = [
        recipe(environment={"A": "core", "B": "two words"}, labels={"who": "core"}),
        recipe("child", parent="core", environment={"A": "child:$PATH"}, labels={"who": 'a "b"'}),
    ]
    plan = make_plan(project(tmp_path, recipes=given), EVERYTHING, compiler="hpccm 1")
    made = compiled(plan.images[-1])
    assert "A=child:$PATH" in made.dockerfile
    assert 'B="two words"' in made.dockerfile
    assert 'export B="two words"' in made.singularity
    assert "A=core" not in made.dockerfile
    assert r'who="a \"b\""' in made.dockerfile
    assert '    who a "b"\n' in made.singularity


def test_a_child_has_a_title_of_its_own(tmp_path: Path) -> None:
    title = "org.opencontainers.image.title"
    given = [recipe(labels={title: "the core", "who": "us"}), recipe("child", parent="core")]
    plan = make_plan(project(tmp_path, recipes=given), EVERYTHING, compiler="hpccm 1")
    [core, child] = [compiled(one).dockerfile for one in plan.images]
    assert f'{title}="the core"' in core
    assert f"{title}=child" in child
    assert "who=us" in child


def test_labels_say_what_the_image_is(tmp_path: Path) -> None:
    text = compiled(tiny(tmp_path, mpi=("openmpi5.0",))).dockerfile
    for label in (
        "build-images.arch=x86_64",
        "build-images.cuda=none",
        f'build-images.mpi="openmpi {MPI.version}"',
        "build-images.identifier=core-1.0-debian13-openmpi5.0-x86_64",
        "org.opencontainers.image.version=1.0",
    ):
        assert label in text
