"""Stages are built once, whoever asks first; a failure stops only what comes after it."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from samples import EVERYTHING, a_file, base, block, project, recipe
from test_repack import exported

from builder.build import stages as stages_module
from builder.build.base_store import StoredBase
from builder.build.engines import DockerfileBuild, Tools
from builder.build.inputs import look_for_registries
from builder.build.mirror import DebianMirror
from builder.build.records import stage_states
from builder.build.run import BuildSettings, Run
from builder.build.workspace import ImageWorkspace, announce_run
from builder.compile.lint.reading import read_dockerfile
from builder.compile.spec import COMPILER, compile_spec
from builder.model import Plan, PlannedImage, Spec
from builder.model.cells import base_tag
from builder.model.errors import BuildStep, StepFailed
from builder.plan import make_plan
from builder.plan.keys import declared_stages
from builder.system.files import write_atomically
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.locks import locked, locked_now
from builder.system.process import Processes
from builder.system.terminal import Progress
from builder.verify.main_job import Results, run_job


class FakeEngine:
    """Keeps names of images. `fails` are words of Dockerfiles that it cannot build."""

    name = "fake"
    lends = False
    options = "none that matter"

    def __init__(self) -> None:
        self.images: dict[str, str] = {}  # what each is for, by name
        self.built: list[str] = []  # the last stage of each Dockerfile
        self.fails: dict[str, StepFailed] = {}
        self.meet: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def version(self) -> str:
        return "1.0"

    def has(self, name: str) -> bool:
        return name in self.images

    def provide_base(self, base: StoredBase, *, log: Path) -> None:
        with log.open("a") as file:
            file.write(f"base {base.name}\n")

    def build(self, build: DockerfileBuild) -> None:
        assert build.file.startswith("Dockerfile")
        text = (build.context / build.file).read_text()
        last = [line for line in text.splitlines() if line.startswith("FROM ")][-1]
        for line in text.splitlines():
            if line.startswith("FROM localhost/build-images/stage:"):
                assert line.split()[1] in self.images, f"{line}: not there"
        self.meet()
        with build.log.open("a") as out:
            out.write(f"{last}\n")
        for word, error in self.fails.items():
            if word in text:
                error.log = build.log
                raise error
        with self._lock:
            self.built.append(f"{last.split()[-1]} of {build.image.cell.recipe}")
            self.images[build.name] = build.image.identifier

    def export(self, name: str, target: Path, *, log: Path) -> None:
        del log
        files = [a_file("etc/name", self.images[name]), a_file("opt/build-images/bin/mpi", "")]
        exported(target, files, config={}, history=[])

    def load(self, folder: Path, name: str, *, log: Path) -> None:
        del log
        assert (folder / "manifest.json").exists()
        self.images[name] = "loaded"

    def clean(self) -> None:
        pass


CORE = recipe("core", development=(block(ospackages=["a"]),))
ONE = recipe("one", parent="core", development=(block(ospackages=["b"]),))
TWO = recipe("two", parent="core", development=(block(ospackages=["c"]),))


class Site:
    """A project with a home and an engine, on which the main job is run."""

    def __init__(self, root: Path) -> None:
        self.root, self.home, self.engine = root, Home(path=root / "home"), FakeEngine()
        self.recipes, self.base = [CORE, ONE, TWO], base()
        self.leave_out: set[str] = set()
        self.said, self.host, self.versions = io.StringIO(), host_facts(), dict[str, str]()
        self._planning = threading.Lock()

    def plan(self) -> Plan:
        with self._planning:  # the project's files are written anew each time
            made = project(self.root / "project", recipes=self.recipes, bases=[self.base])
            return make_plan(made, EVERYTHING, compiler=COMPILER)

    def specs(self) -> list[Spec]:
        images = [one for one in self.plan().images if one.cell.recipe not in self.leave_out]
        with self._planning:  # hpccm has global state; builders are processes
            return [compile_spec(one, run_checks="#!/bin/sh\n") for one in images]

    def job(self, *, jobs: int = 4, out: str = "out", **changes: Any) -> Results:
        settings = BuildSettings(
            project=self.root / "project",
            engine="fake",
            out=self.root / out,
            formats=("oci",),
            **{"verify": False, **changes},
        )
        run = self.run(settings)
        run.settings.out.mkdir(exist_ok=True)
        return run_job(run, self.specs(), jobs=jobs)

    def run(self, settings: BuildSettings) -> Run:
        return Run(
            settings=settings,
            tools=Tools(processes=Processes(), home=self.home),
            engine=self.engine,
            progress=Progress(stream=self.said, level=2),
            host=self.host,
            versions=self.versions,
            declared={"matrix.yaml": "sha256:0"},
        )

    def built(self) -> list[str]:
        """What was built since this was asked last."""
        found, self.engine.built = sorted(self.engine.built), []
        return found

    def states(self) -> dict[str, list[str]]:
        declared = [declared_stages(image, COMPILER) for image in self.plan().images]
        states = stage_states(self.home, "fake", declared)
        return {
            one.image: [f"{state.stage.target}: {state}" for state in some]
            for one, some in zip(declared, states, strict=True)
        }


@pytest.fixture(name="site")
def made_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site(tmp_path)
    store = site.home.bases / "debian13"
    store.mkdir(parents=True)

    def ensured(_base: object, arch: str, name: str, *_: object, **__: object) -> StoredBase:
        record = f'{{"name": "{name}", "digest": "sha256:1", "made": "2"}}'
        write_atomically(store / "base.json", record)  # another builder may read it
        archive = store / "base.oci.tar"
        archive.touch()
        return StoredBase(
            name=name, arch=arch, key="k", archive=archive, digest="sha256:1", made="2"
        )

    monkeypatch.setattr(stages_module, "ensure_base", ensured)
    mirror = DebianMirror(main="http://mirror.example.org/debian", security="")
    monkeypatch.setattr("builder.build.run.find_mirror", lambda: mirror)
    monkeypatch.setattr(Tools, "ordinary_user", None)
    return site


ALL = [
    "core-development of core",
    "one-development of one",
    "runtime of core",
    "runtime of one",
    "runtime of two",
    "two-development of two",
]


def test_development_images_wait_for_no_runtime_images(site: Site) -> None:
    def plan() -> Plan:
        made = project(site.root / "project", recipes=site.recipes, bases=[site.base])
        chosen = dataclasses.replace(EVERYTHING, flavours=("development",))
        return make_plan(made, chosen, compiler=COMPILER)

    site.plan = plan  # type: ignore[method-assign]
    assert site.job(jobs=1).exit_code == 0
    assert site.built() == sorted(stage.replace("runtime", "development") for stage in ALL)


def test_a_shared_stage_is_built_once_and_again_only_without_cache(site: Site) -> None:
    site.versions["fake"] = "1.0"
    states, no_base = site.states(), "to build: its base is not in the store"
    core, two = states["core-1.0-debian13-x86_64"], states["two-1.0-debian13-x86_64"]
    assert core == [f"core-development: {no_base}", f"runtime: {no_base}"]
    assert two[0] == "core-development: shared with core-1.0-debian13-x86_64"
    assert site.job().exit_code == 0
    assert site.built() == ALL
    log = (site.root / "out/one-1.0-debian13-x86_64/build.log").read_text().splitlines()
    stages = [line.split()[-1] for line in log if line.startswith("FROM")]
    assert stages == ["core-development", "one-development", "runtime"]
    known = json.loads((site.home.path / "durations.json").read_text())
    assert "fake stage core-development-debian13-x86_64" in known
    assert "fake image one-1.0-debian13-x86_64" in known
    assert known == {label: round(seconds, 2) for label, seconds in known.items()}
    assert "fake base debian13 x86_64" not in known, "it was there before"
    assert site.job().exit_code == 0
    assert site.built() == []
    [path] = site.home.stages.glob("one-development-*/*.json")
    record = json.loads(path.read_text())
    declared = declared_stages(site.plan().images[1], COMPILER)
    [_, stage, _] = declared.keyed(base="sha256:1", engine="fake 1.0, none that matter")
    made, took_s, text = (record.pop(name) for name in ("made", "duration_s", "text"))
    assert (len(made), took_s < 60, len(text)) == (len("2026-01-01T00:00:00+00:00"), True, 64)
    assert record == {
        "name": path.parent.name,
        "target": "one-development",
        "parts": dict(stage.parts),
        "key": stage.key,
        "tag": stage.tag,
        "tools": {"fake": "1.0"},
        "indices": [],
    }
    site.job(cache=False)
    assert site.built() == ALL
    shutil.rmtree(site.home.stages / "two-development-debian13-x86_64")
    two = site.states()["two-1.0-debian13-x86_64"]
    assert two[1] == "two-development: to build: never built here"


def test_a_base_names_no_indices_of_the_base_before_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it is made anew: that one's package index may have been months behind."""
    ensured: Callable[..., StoredBase] = vars(stages_module)["ensure_base"]
    asked = set[tuple[str, bool]]()

    def ensure(*words: Any, indices: Callable[[], object], **named: Any) -> StoredBase:
        indices()
        return ensured(*words, **named)

    def states(_run: Run, image: PlannedImage, name: str, **named: Any) -> tuple[()]:
        asked.add(("base" if name == image.base_image else "stage", named.get("earlier", True)))
        return ()

    monkeypatch.setattr(stages_module, "ensure_base", ensure)
    monkeypatch.setattr(stages_module, "index_states", states)
    assert site.job().exit_code == 0
    assert asked == {("base", False), ("stage", True)}


def test_the_log_of_the_first_image_has_the_output_of_its_base(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensured: Callable[..., StoredBase] = vars(stages_module)["ensure_base"]

    def ensure(*words: Any, **named: Any) -> StoredBase:
        with words[3].log.open("a") as log:
            log.write("mmdebstrap prints this\n")
        return ensured(*words, **named)

    monkeypatch.setattr(stages_module, "ensure_base", ensure)
    assert site.job().exit_code == 0
    logs = sorted(site.root.glob("out/*/build.log"))
    assert [log.read_text().count("mmdebstrap") for log in logs] == [1, 0, 0]
    assert logs[0].read_text().startswith("mmdebstrap prints this\n")


def test_a_runtime_stage_comes_after_that_of_its_nearest_ancestor(site: Site) -> None:
    site.recipes = [CORE, ONE, recipe("a-leaf", parent="one")]
    site.job(jobs=1)
    order = [one.removeprefix("runtime of ") for one in site.engine.built if "runtime" in one]
    assert order == ["core", "one", "a-leaf"]
    core = site.plan().images[0].identifier
    site.leave_out, site.engine.built = {"one"}, []
    site.engine.fails = {core: StepFailed("the build failed")}
    results = site.job(cache=False)
    assert [*results.errors] == [core]
    assert [name.partition("-1")[0] for name in results.manifests] == ["a-leaf"]


def test_also_by_two_builders_that_start_at_the_same_moment(site: Site) -> None:
    together = threading.Barrier(2, timeout=300)

    def meet() -> None:
        site.engine.meet = lambda: None  # once
        together.wait()  # the other is under way before this is done

    def second() -> Results:
        together.wait()
        return site.job(out="out2")

    site.engine.meet = meet
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(site.job, out="out1"), pool.submit(second)]
        results = [run.result() for run in runs]
    assert [(result.errors, result.exit_code) for result in results] == [({}, 0)] * 2
    built = site.built()
    for name in ("core-development of core", "one-development of one", "two-development of two"):
        assert built.count(name) == 1, built


def test_two_builders_of_the_same_images_make_them_once(site: Site) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = [one.result() for one in [pool.submit(site.job) for _ in range(2)]]
    results_of = [(result.errors, result.exit_code, len(result.manifests)) for result in results]
    assert results_of == [({}, 0, 3)] * 2
    assert site.built() == ALL
    assert site.said.getvalue().count(": unchanged") == 3


@pytest.mark.parametrize("what", ["work", "stages"])
def test_who_holds_what_a_builder_waits_for_is_named(
    site: Site, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.system.locks._MOMENT_S", 0.0)
    image = site.plan().images[0]
    stages = declared_stages(image, COMPILER)
    key = stages.keyed(base="sha256:1", engine="fake 1.0, none that matter")[0].key[:32]
    name, work = {"work": (f"{image.identifier}-fake", "this image"), "stages": (key, "it")}[what]
    holder = f"waiting for process {os.getpid()} on {os.uname().nodename} (since 20"
    with ThreadPoolExecutor(1) as pool:
        out = site.root / "out"
        out.mkdir()
        other = announce_run(out, {image.identifier: "not begun"}, print)
        with other, locked(site.home.path / what, name):
            job = pool.submit(site.job)
            deadline = time.monotonic() + 30
            while f" UTC), which builds {work}\n" not in site.said.getvalue():
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert job.result().exit_code == 0
    assert holder in site.said.getvalue()
    assert f" UTC) builds 1 image of this run in {out}, too\n" in site.said.getvalue()


def test_a_changed_recipe_rebuilds_itself_and_its_descendants(site: Site) -> None:
    site.job()
    site.built()
    changed = dataclasses.replace(ONE, development=(block(ospackages=["other"]),))
    site.recipes = [CORE, changed, TWO]
    assert site.states()["one-1.0-debian13-x86_64"] == [
        "core-development: cached",
        "one-development: to build: its recipe changed",
        "runtime: to build: the stage before it changed",
    ]
    assert site.job().exit_code == 0
    assert site.built() == ["one-development of one", "runtime of one"]
    site.recipes[0] = dataclasses.replace(CORE, environment={"A": "b"}, about="other words")
    site.job()
    assert site.built() == ["runtime of core", "runtime of one", "runtime of two"]


def test_a_changed_parent_rebuilds_all_once(site: Site) -> None:
    site.job()
    site.built()
    site.recipes[0] = dataclasses.replace(CORE, development=(block(ospackages=["other"]),))
    states = site.states()
    core, one = states["core-1.0-debian13-x86_64"], states["one-1.0-debian13-x86_64"]
    assert core[0] == "core-development: to build: its recipe changed"
    assert one[:2] == [
        "core-development: shared with core-1.0-debian13-x86_64",
        "one-development: to build: the stage before it changed",
    ]
    site.job()
    assert site.built() == ALL


def test_storage_that_was_cleaned_by_hand_is_filled_again(site: Site) -> None:
    site.job()
    site.built()
    site.engine.images.clear()
    shutil.rmtree(site.root / "out")
    assert site.states()["core-1.0-debian13-x86_64"][0] == "core-development: cached"
    assert site.job().exit_code == 0
    assert site.built() == ALL


def test_a_failed_stage_stops_what_is_made_from_it_and_nothing_else(site: Site) -> None:
    other = recipe("other")
    site.recipes = [CORE, ONE, other]
    site.engine.fails = {"        a && ": StepFailed("the build failed at: RUN a", tail=["oh"])}
    results = site.job()
    assert results.exit_code == 1
    assert set(results.manifests) == {"other-1.0-debian13-x86_64"}
    errors = {name: str(error) for name, error in results.errors.items()}
    core, one = errors["core-1.0-debian13-x86_64"], errors["one-1.0-debian13-x86_64"]
    assert core.startswith("the build failed at: RUN a")
    assert "| oh" in core
    assert one.startswith(
        "not built: its stage core-development-debian13-x86_64, shared with "
        "core-1.0-debian13-x86_64, failed"
    )
    for name, text in errors.items():
        log = site.root / "out" / name / "build.log"
        assert f"log: {log}" in text
        assert "AS core-development" in log.read_text()
        assert not (log.parent / "manifest.json").exists()
    assert "core-1.0-debian13-x86_64: failed, the build failed at: RUN a" in site.said.getvalue()
    [core, one] = map(str, site.job(verbose=True).errors.values())
    assert "| oh" not in core, "it was shown as it came"
    assert "log: " in core


@pytest.mark.parametrize(
    ("word", "instruction", "number", "where"),
    [
        ("        a && ", "RUN apt-get", 1, "from recipes/core.yaml:5, development[0].packages"),
        ("AS runtime", "RUN of another recipe", 1, ""),
    ],
)
def test_a_failed_step_is_known_by_its_place(
    word: str, instruction: str, number: int, where: str, site: Site
) -> None:
    site.recipes = [CORE]
    [spec] = site.specs()
    if instruction == "RUN apt-get":
        [part] = [one for one in read_dockerfile(spec.dockerfile).parts if one.name == "RUN"]
        instruction = f"RUN   {part.value}"
    error = StepFailed(
        "the build failed at: it",
        hint="ask" if where else "",
        step=BuildStep(instruction=instruction, number=number),
    )
    site.engine.fails = {word: error}
    hints, name = list[str](), spec.image.identifier
    for site.engine.name in ("docker", "buildah"):
        [failed] = site.job().errors.values()
        hints.append(failed.hint)
    shell = f"a shell before this step: build-images shell {name}"
    assert hints == (["ask", f"ask; {shell}"] if where else ["", shell])
    assert isinstance(failed, StepFailed)
    assert failed.message == "the build failed at: it" + (f"\n  {where}" if where else "")
    assert failed.step
    assert failed.step.stage == ("core-development" if where else "runtime")


def test_of_equal_steps_each_has_its_own_place(site: Site) -> None:
    twice = [block("shell", line=line, commands=["make  a"]) for line in (5, 9)]
    site.recipes = [recipe("core", development=tuple(twice), runtime=tuple(twice[:1]))]
    [spec] = site.specs()

    def place(number: int, instruction: str = "RUN make a", stage: str = "core-development") -> str:
        return stages_module.place_of(
            BuildStep(instruction=instruction, number=number), spec, stage
        )

    assert [place(number).partition(",")[0] for number in (1, 2, 3)] == [
        *("recipes/core.yaml:5", "recipes/core.yaml:9", "recipes/core.yaml:9")
    ]
    assert place(2, stage="runtime") == "recipes/core.yaml:5, development[0].shell"
    assert place(1, "RUN make b") == ""


def test_a_full_disk_is_what_the_machine_lacks(site: Site) -> None:
    full = StepFailed("buildah build: exit status 1", tail=["write /x: No space left on device"])
    site.engine.fails = {"core-development": full}
    shared = site.job(jobs=1)  # all three wait for it
    assert (len(shared.errors), shared.reasons(lacking=False)) == (3, {})
    site.engine.fails = {"two-development": full}
    results = site.job()
    assert results.exit_code == 4
    assert "the disk is full" in str(results.errors["two-1.0-debian13-x86_64"])
    site.engine.fails = {}
    assert site.job().exit_code == 0


def test_a_bug_that_one_image_meets_does_not_end_the_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = site.engine.export

    free = list[bool]()

    def breaks(name: str, target: Path, *, log: Path) -> None:
        assert not site.engine.images[name].startswith("one-"), "so it is"
        with locked_now(site.home.work, "one-1.0-debian13-x86_64-fake") as is_free:
            free.append(is_free)
        export(name, target, log=log)

    monkeypatch.setattr(site.engine, "export", breaks)
    results = site.job(jobs=1)
    assert free[-1], "another builder may build the image that failed"
    assert results.exit_code == 1
    assert len(results.manifests) == 2
    assert "unexpected AssertionError: so it is" in str(results.errors["one-1.0-debian13-x86_64"])


def test_an_image_lies_with_its_base_which_is_checked_and_no_manifest_of_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, origins = list[str](), list[str]()
    start_from = ImageWorkspace.start_from

    def started(work: ImageWorkspace, origin: str) -> None:
        origins.append(origin)
        start_from(work, origin)

    monkeypatch.setattr(StoredBase, "check", lambda one: checked.append(one.digest))
    monkeypatch.setattr(ImageWorkspace, "start_from", started)
    site.recipes, folder = [CORE], site.root / "out/core-1.0-debian13-x86_64"
    assert site.job().exit_code == 0
    assert checked == ["sha256:1"]
    assert [origin.split()[0] for origin in origins] == ["sha256:1"]
    assert (folder / "debian13-x86_64.oci.tar").is_file()
    assert (folder / "manifest.json").is_file()
    site.engine.fails = {"AS runtime": StepFailed("the build failed")}
    assert site.job(cache=False).exit_code == 1
    assert not (folder / "manifest.json").exists()


def test_stages_start_from_the_registrys_base_that_the_store_has(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, other = (f"sha256:{number:064x}" for number in (7, 8))
    name = f"localhost:1/library/sample@{digest}"  # nothing listens there
    site.base, site.recipes = base(bootstrap=None, references={"x86_64": name}), [CORE]
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(site.home.path))
    out = site.root / "out"
    assert len(look_for_registries(site.specs(), out, offline=False).specs) == 1
    for number, one in enumerate((digest, other)):
        folder = site.home.bases / str(number)
        folder.mkdir()
        about = {"name": f"docker.io/library/sample@{one}", "arch": "x86_64", "digest": one}
        about |= {"key": "", "made": "", "archive": "sample.oci.tar"}
        (folder / "base.json").write_text(json.dumps(about))
        (folder / "sample.oci.tar").touch()
    assert look_for_registries(site.specs(), out, offline=False).specs == ()
    assert site.job().exit_code == 0
    log = (site.root / "out/core-1.0-debian13-x86_64/build.log").read_text().splitlines()
    assert log == [
        *(f"base {name}", f"FROM {base_tag(digest)} AS core-development"),
        *(f"base {name}", f"FROM {base_tag(digest)} AS runtime"),
    ]
