"""The command lines by which engines build, keep and hand over images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import samples
from recorded import Commands

from builder.build.base_store import StoredBase
from builder.build.engines import ENGINES, DockerfileBuild, Lent, apptainer
from builder.build.engines.protocol import tag
from builder.model.errors import BuildStep, StepFailed
from builder.sources.journals import Journals, build_id
from builder.system.process import TAIL_LINES

BASE_DIGEST = f"sha256:{'4f' * 32}"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """One with all engines, which know no image yet."""
    commands = Commands(tmp_path, monkeypatch)
    commands.install("buildah", "docker", "skopeo", "apptainer")
    commands.failing.update(["inspect"])
    commands.output.update(
        {
            "oci-archive:": "9a9a\n",
            "docker version": "27.3.1\n",
            "--layers": "[1/2] STEP 1/3: FROM debian13:1\n[1/2] STEP 2/3: RUN make\n",
            "--platform": "#1 [auth] token\n#12 [core 2/3] RUN make\nStep 3/8 : RUN make\n",
            "buildah --version": "buildah version 1.28.2 (image-spec 1.0.2)\n",
        }
    )
    (tmp_path / "home/work").mkdir()
    (tmp_path / "home/storage").mkdir()
    return commands


def stored_base(folder: Path, *, recorded: str = BASE_DIGEST) -> StoredBase:
    """A base in a folder, whose record has a digest."""
    (folder / "base.json").write_text(json.dumps({"digest": recorded}))
    return StoredBase(
        name="debian13:1",
        arch="x86_64",
        key="k",
        archive=folder / "base.tar",
        digest=BASE_DIGEST,
        made="2026-01-01T00:00:00Z",
    )


def planned(machine: Commands) -> DockerfileBuild:
    image = dataclasses.replace(samples.image(machine.folder), content_key="c0ffee" * 4)
    return DockerfileBuild(
        image=image,
        context=machine.folder / "context",
        name=tag(image),
        log=machine.folder / "build.log",
        on_line=machine.note,
    )


@pytest.mark.parametrize("name", ENGINES)
def test_an_image_is_built_and_handed_over(name: str, machine: Commands) -> None:
    build = planned(machine)
    base = stored_base(machine.folder)
    engine = ENGINES[name](machine.tools)
    machine.note(f"version {engine.version()}")
    engine.provide_base(base, log=build.log)
    engine.build(build)
    machine.note("## without its cache, another file and another name")
    lent = [Lent(path=machine.folder / "native", at="/.native")] if engine.lends else []
    engine.build(
        dataclasses.replace(build, cache=False, file="Dockerfile.cut", name="other:1", lent=lent)
    )
    machine.note("## handing over and tidying up")
    engine.export(build.name, machine.folder / "exported", log=build.log)
    machine.output["dir:FOLDER/exported"] = machine.output["pull"] = "c0ffee\n"
    engine.load(machine.folder / "exported", "stage:1", log=build.log)
    engine.clean()
    machine.note("## a base that it has")
    machine.failing.clear()
    engine.provide_base(base, log=build.log)
    machine.compare(f"engines/{name}")


def test_layers_are_noted_as_built_or_as_taken(machine: Commands) -> None:
    """Of a layer that is taken the downloads are those of the build that built it."""
    journals = Journals(cache=machine.folder / "packages")
    engine = ENGINES["buildah"](dataclasses.replace(machine.tools, journals=journals))
    build = planned(machine)
    machine.output["--layers"] = "--> 0123456789ab\n"
    engine.build(build)
    machine.output["--layers"] = "--> Using cache 0123456789abcdef\n--> aaaaaaaaaaaaaaaa\n"
    engine.build(build)
    machine.failing.add("--network=host")
    with pytest.raises(StepFailed):
        engine.build(dataclasses.replace(build, cache=False, name="other"))
    first, second = ["0123456789a"], ["0123456789a", "aaaaaaaaaaa"]
    begun = {"complete": False}
    ends = [{"complete": True, "built": first, "alone": True}, {"complete": True, "built": second}]
    failed = {"complete": False, "built": ["aaaaaaaaaaa"]}
    for name, lines in ((build.name, [begun, ends[0], begun, ends[1]]), ("other", [begun, failed])):
        text = journals.path(build_id(name)).read_text()
        assert [json.loads(line) for line in text.splitlines()] == lines


@pytest.mark.parametrize("name", ENGINES)
def test_a_build_that_fails_names_its_instruction(name: str, machine: Commands) -> None:
    machine.failing.add("--network=host")
    with pytest.raises(StepFailed, match=r"the build failed at: RUN make\n"):
        ENGINES[name](machine.tools).build(planned(machine))


FAILING = {
    "buildah": """\
[1/2] STEP 1/1: FROM debian13:1 AS core
[2/2] STEP 2/4: RUN make
--> 0123456789ab
[2/2] STEP 3/4: COPY a     b
--> Using cache aaaaaaaaaaaaaaaa
[2/2] STEP 4/4: RUN make
make: *** No rule
subprocess exited with status 2
Error: building at STEP "RUN make": exit status 2
""",
    "docker": """\
#12 [core 2/3] RUN make
#12 0.310 make: nothing to do
#12 DONE 0.3s
#13 [core 3/3] RUN make
#13 0.345 make: *** No rule
#13 ERROR: process "/bin/sh -c make" did not complete successfully: exit code: 2
------
 > [core 3/3] RUN make:
0.345 make: *** No rule
------
Dockerfile:7
--------------------
   5 |     RUN make
   7 | >>> RUN make
--------------------
ERROR: failed to solve: process "/bin/sh -c make" did not complete successfully: exit code: 2
""",
}


@pytest.mark.parametrize("name", ENGINES)
def test_the_output_of_a_failed_step_is_told_once(name: str, machine: Commands) -> None:
    machine.output.clear()
    machine.output["--network=host"] = FAILING[name]
    machine.failing.add("--network=host")
    printed = list[str]()
    build = dataclasses.replace(planned(machine), on_output=printed.append)
    with pytest.raises(StepFailed) as failed:
        ENGINES[name](machine.tools).build(build)
    layer = "aaaaaaaaaaa" if name == "buildah" else ""
    assert failed.value.tail == ("make: *** No rule",)
    assert "shell" not in failed.value.hint, "no step is noted yet"
    assert failed.value.step == BuildStep(instruction="RUN make", number=2, layer=layer)
    assert printed[-1] == "make: *** No rule"


@pytest.mark.parametrize(
    "line",
    [
        "Error: Unclassifiable statement at (1)",
        "a.c:12:3: error: no x",
        '"a.F90", line 4: fatal error: no module',
        "a.f90(7): error #6404: no type",
        "a.c: undefined reference to `g'",
        "CMake Error at CMakeLists.txt:3 (find_package):",
        "configure: error: cannot find install",
        "E: Unable to locate package a",
        "nvcc fatal   : Unsupported gpu architecture 'compute_20'",
        "/usr/bin/ld: cannot find -la: No such file or directory",
        "error[E0425]: cannot find value",
        "ERROR: No matching distribution found for a",
    ],
)
def test_the_first_error_of_a_long_output_is_shown(line: str, machine: Commands) -> None:
    """With many jobs, `make` prints it far above its last line."""
    machine.output.clear()
    machine.failing.add("--network=host")
    engine = ENGINES["buildah"](machine.tools)
    before, after = ([f"{number} terror: 1, error.o" for number in range(n)] for n in (6, 40))
    for number, shown in ((TAIL_LINES - 1, []), (TAIL_LINES, [*before[2:], line, *after[:2]])):
        output = ["STEP 1/2: RUN true", line, "STEP 2/2: RUN make", *before, line, *after[:number]]
        machine.output["--network=host"] = "\n".join(output)
        with pytest.raises(StepFailed) as failed:
            engine.build(planned(machine))
        assert failed.value.first_error == tuple(shown)


def test_docker_builds_with_buildkit_where_it_is(machine: Commands) -> None:
    machine.install("docker-buildx")
    ENGINES["docker"](machine.tools).build(planned(machine))
    machine.compare("engines/docker-buildx")


def test_a_base_that_changed_meanwhile_is_no_base(machine: Commands) -> None:
    base = stored_base(machine.folder, recorded="sha256:other")
    with pytest.raises(StepFailed, match="not the base that this run began with"):
        ENGINES["buildah"](machine.tools).provide_base(base, log=machine.folder / "build.log")


def test_a_copy_of_a_base_has_no_record(machine: Commands) -> None:
    base = stored_base(machine.folder)
    (machine.folder / "base.json").unlink()
    ENGINES["buildah"](machine.tools).provide_base(base, log=machine.folder / "build.log")
    assert any(line.endswith(f"tag 9a9a debian13:1 {base.tag}") for line in machine.lines)


@pytest.mark.parametrize("arch", ["x86_64", "ppc64le"])
def test_a_definition_is_built_by_apptainer(arch: str, machine: Commands) -> None:
    folder = machine.folder / "work"
    for is_root in (True, False):
        with machine.user(is_root=is_root):
            apptainer.build(
                folder / "image.def",
                folder / "image.sif",
                arch=arch,
                tools=machine.tools,
                log=machine.folder / "build.log",
                options=("--fakeroot",),
            )
    machine.compare(f"engines/apptainer-{arch}")
