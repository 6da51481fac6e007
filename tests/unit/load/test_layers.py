"""Projects that inherit: what replaces what, and which file a message names."""

from __future__ import annotations

import hashlib
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from samples import ROOT

from builder.build.inputs import packed_files, project_digests
from builder.build.planning import compile_images, plan_of
from builder.cli import main
from builder.load.document import Faults
from builder.load.project import load_project
from builder.load.site import layers_of, shipped_folder
from builder.model import Project, Selection
from builder.model.errors import BadInput

Capture = pytest.CaptureFixture[str]
GOOD = ROOT / "tests/data/good"
EVERYTHING = Selection(everything=True)
MORE = """\
recipe: more
version: "1.0"
about: a program on core
parent: core
checks: [hello]
"""
NARROW = "axes: {arch: [ppc64le], mpi: [mpich4.2]}\n"
CHECK = """\
checks:
  {name}:
    about: another program runs
    sources: [hello.c, {source}]
    run: {name}
    timeout: 60
"""


@pytest.fixture(name="shipped")
def shipped_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What comes with the program: the project in tests/data/good."""
    monkeypatch.delenv("BUILD_IMAGES_SITE", raising=False)
    monkeypatch.setenv("BUILD_IMAGES_HOME", str(tmp_path / "home"))
    folder = tmp_path / "shipped"
    shutil.copytree(GOOD, folder)
    (folder / "tests/images/run-checks").write_text("#!/bin/sh\n")
    monkeypatch.setattr("builder.load.site.shipped_folder", lambda: folder)
    return folder


@pytest.fixture(name="project")
def own_project(shipped: Path, tmp_path: Path) -> Path:  # noqa: ARG001 - what it inherits
    return written(tmp_path / "project", {"matrix.yaml": "axes: {mpi: [openmpi5.0]}\n"})


@pytest.fixture(name="site")
def layer_of_the_site(project: Path, tmp_path: Path) -> Path:
    (project / "site.yaml").write_text(f"layer: {tmp_path}/site\n")
    return written(tmp_path / "site", {})


def written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def keys(project: Project) -> dict[str, str]:
    return {image.identifier: image.content_key for image in plan_of(project, EVERYTHING).images}


def messages(project: Path) -> list[str]:
    with pytest.raises(BadInput) as caught:
        load_project(project)
    return str(caught.value).splitlines()


# ---- What is inherited ----


def test_a_matrix_alone_inherits_all(project: Path, shipped: Path) -> None:
    """An image has the same key wherever its files come from."""
    (project / ".layers/shipped").mkdir(parents=True)  # of no packed project
    loaded = load_project(project)
    assert (list(loaded.recipes), list(loaded.bases)) == (["app", "core"], ["debian13"])
    assert loaded.recipes["core"].where.file == "shipped:recipes/core.yaml"
    assert keys(loaded) == keys(load_project(shipped))
    assert keys(loaded)


def test_a_name_in_a_higher_layer_replaces(project: Path, site: Path) -> None:
    core = (GOOD / "recipes/core.yaml").read_text()
    base = (GOOD / "base-images/debian13.yaml").read_text()
    written(
        site,
        {"recipes/core.yaml": core.replace("a compiler", "the site's"), "recipes/more.yaml": MORE},
    )
    written(project, {"recipes/more.yaml": MORE.replace("a program", "mine,")})
    written(project, {"base-images/debian13.yaml": base.replace("about: Debian", "about: our own")})
    loaded = load_project(project)
    assert loaded.recipes["core"].about == "the site's"
    assert loaded.recipes["more"].about == "mine, on core"
    assert [recipe.where.file for recipe in loaded.chain("more")] == [
        "site:recipes/core.yaml",
        "recipes/more.yaml",
    ]
    assert "our own" in loaded.bases["debian13"].about


def test_axes_defaults_and_tags_replace_one_by_one_and_exclusions_are_added(
    project: Path, shipped: Path
) -> None:
    with (shipped / "matrix.yaml").open("a") as file:
        file.write(
            "tags:\n  core:\n"
            "    latest: {base: debian13, mpi: openmpi5.0}\n"
            "    mpich: {base: debian13, mpi: mpich4.2}\n"
            "    same: {base: debian13}\n"
        )
    text = (shipped / "matrix.yaml").read_text()
    both = "mpi: [openmpi, mpich4.2]\n  cuda: [none]\n  arch: [ppc64le]"
    (shipped / "matrix.yaml").write_text(text.replace("mpi: [openmpi]\n", f"{both}\n"))
    written(
        project,
        {
            "matrix.yaml": "axes: {mpi: [none, openmpi5.0], arch: [x86_64]}\n"
            "exclude: [{when: {mpi: none}, reason: ours}]\n"
            "default: {cuda: ['12.4']}\n"
            "tags: {core: {same: {base: debian13, mpi: openmpi5.0}}}\n"
        },
    )
    matrix = load_project(project).matrix
    assert matrix.axes == {
        "arch": ("x86_64",),
        "base": ("debian13",),
        "cuda": ("none", "12.4"),
        "mpi": ("none", "openmpi5.0"),
    }
    assert matrix.files == {
        "arch": "matrix.yaml",
        "base": "shipped:matrix.yaml",
        "cuda": "shipped:matrix.yaml",
        "mpi": "matrix.yaml",
    }
    assert [each.reason for each in matrix.excludes] == ["the application needs Open MPI", "ours"]
    assert matrix.default == {"mpi": ("openmpi",), "cuda": ("12.4",)}  # its ppc64le is no value
    tags = [(tag.tag, tag.mpi, tag.where.file) for tag in matrix.tags]
    assert tags == [
        ("latest", "openmpi5.0", "shipped:matrix.yaml"),
        ("same", "openmpi5.0", "matrix.yaml"),
    ]


def test_a_project_can_inherit_nothing(project: Path) -> None:
    (project / "matrix.yaml").write_text("axes: {mpi: [openmpi5.0]}\ninherit: false\n")
    lines = messages(project)
    assert "recipes/:1: the folder is missing or has no YAML file" in lines
    assert "matrix.yaml:1: axes.arch: this key is missing" in lines


def test_the_shipped_layer_inherits_nothing() -> None:
    assert [layer.name for layer in layers_of(shipped_folder()).each] == ["project"]
    assert shipped_folder() == ROOT


# ---- Faults ----


def test_what_an_axis_lacks_is_no_fault_in_inherited_files(project: Path) -> None:
    """The shipped app is for x86_64 only, and excluded with MPICH."""
    (project / "matrix.yaml").write_text("axes: {arch: [ppc64le], mpi: [mpich4.2]}\n")
    loaded = load_project(project)
    left_out = plan_of(loaded, EVERYTHING, may_be_empty=True).left_out
    app = [str(reason) for entry in left_out for reason in entry.reasons if "app" in str(reason)]
    assert "(shipped:recipes/app.yaml: axes.arch)" in app[0]


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("recipes/app.yaml", (GOOD / "recipes/app.yaml").read_text(), ""),
        ("recipes/more.yaml", MORE + "axes: {arch: [aarch64]}\n", 'axes.arch: "aarch64"'),
        ("recipes/more.yaml", MORE + "axes: {mpi: [mpihc4.2]}\n", 'axes.mpi[0]: "mpihc4.2"'),
        (
            "matrix.yaml",
            NARROW + "exclude: [{when: {arch: x86_64, base: debain13}, reason: ours}]\n",
            'exclude[0].when.base: "debain13"',
        ),
        ("matrix.yaml", NARROW + "default: {arch: x86_64}\n", 'default.arch: "x86_64"'),
    ],
)
def test_conditions_may_name_what_a_lower_layer_has_on_the_axis(
    project: Path, name: str, text: str, fault: str
) -> None:
    """A shipped recipe is copied and changed in a project that narrows the axis."""
    written(project, {"matrix.yaml": NARROW, name: text})
    if not fault:
        assert load_project(project).recipes["app"].where.file == name
        return
    lines = messages(project)
    assert lines[0] == "1 fault in 1 file; nothing was built."
    assert f"{fault} matches no value" in lines[1]


def test_each_fault_names_its_layer(project: Path, site: Path, shipped: Path) -> None:
    written(site, {"recipes/more.yaml": MORE.replace("core", "cor")})
    written(project, {"recipes/mine.yaml": MORE.replace("[hello]", "[helo]")})
    (shipped / "base-images/debian13.yaml").write_text("base: debian13\n")
    lines = messages(project)
    assert lines[0].endswith("faults in 3 files; nothing was built.")
    assert 'site:recipes/more.yaml:4: parent: unknown recipe: "cor"' in lines
    assert 'recipes/mine.yaml:5: checks[0]: unknown check: "helo"' in lines
    assert any(line.startswith("shipped:base-images/debian13.yaml:1: about") for line in lines)
    assert lines[-1] == f"  hint: shipped: is in {shipped}; site: is in {site}"


@pytest.mark.parametrize("file", ["matrix.yaml", "tests/images/checks.yaml"])
def test_a_file_that_cannot_be_read_is_the_only_fault(project: Path, file: str) -> None:
    """What it declares is not known, so messages do not name those who use it."""
    limits = "axes: {mpi: [mpich9.9]}\n"
    text = MORE.replace("[hello]", "[hello, other]") if file != "matrix.yaml" else MORE + limits
    written(project, {"recipes/more.yaml": text, file: "axes: [\n"})
    lines = messages(project)
    assert lines[0] == "1 fault in 1 file; nothing was built."
    assert lines[1].startswith(f"{file}:2: not YAML")


def test_a_lower_layer_does_not_know_a_higher_one(project: Path, site: Path) -> None:
    written(site, {"recipes/more.yaml": MORE.replace("core", "mine")})
    written(project, {"recipes/mine.yaml": MORE.replace("more", "mine")})
    assert 'site:recipes/more.yaml:4: parent: unknown recipe: "mine"' in messages(project)


def test_a_sites_layer_cannot_turn_inheritance_off(project: Path, site: Path) -> None:
    written(site, {"matrix.yaml": "axes: {mpi: [openmpi5.0]}\ninherit: false\n"})
    assert "site:matrix.yaml:2: inherit: only a project can inherit nothing" in messages(project)


@pytest.mark.parametrize("by", ["project", "variable"])
@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (Path.absolute, "no such folder"),
        (Path.touch, "not a folder"),
        (Path.mkdir, "it has none of the files of a layer"),
    ],
)
def test_a_site_names_a_layer_that_is_none(
    project: Path,
    site: Path,
    make: Callable[[Path], object],
    problem: str,
    by: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site.rmdir()
    make(site)
    file = "site.yaml" if by == "project" else str(site.with_suffix(".yaml"))
    (project / file).write_text(f"sources: []\nlayer: {site}\n")
    if by == "variable":
        monkeypatch.setenv("BUILD_IMAGES_SITE", file)
    assert f"{file}:2: layer: {site}: {problem}" in messages(project)


def test_a_base_that_is_on_no_axis_is_named(project: Path, capsys: Capture) -> None:
    base = (GOOD / "base-images/debian13.yaml").read_text().replace("debian13\n", "debian14\n")
    written(project, {"base-images/debian14.yaml": base})
    assert main(["plan", "--base", "debian14", "--project", str(project)]) == 3
    lacks = "base-images/debian14.yaml declares it, but the axis base of shipped:matrix.yaml lacks"
    assert lacks in capsys.readouterr().err


# ---- Files beside the YAML ----


def test_a_check_has_its_sources_from_its_layer_and_those_below(project: Path, site: Path) -> None:
    written(site, {"tests/images/checks.yaml": CHECK.format(name="sites", source="site.h")})
    written(site, {"tests/images/site.h": "/* the site's */"})
    own = {"checks.yaml": CHECK.format(name="mine", source="site.h"), "hello.c": "/* mine */"}
    written(project, {f"tests/images/{name}": text for name, text in own.items()})
    written(project, {"recipes/more.yaml": MORE.replace("[hello]", "[hello, sites, mine]")})
    [image] = plan_of(
        load_project(project),
        Selection(patterns={"recipe": ("more",), "arch": ("x86_64",), "cuda": ("none",)}),
    ).images
    sources = {check.name: dict(check.sources) for check in image.checks}
    shipped = (GOOD / "tests/images/hello.c").read_text()
    assert sources == {
        "hello": {"hello.c": shipped},
        "sites": {"hello.c": shipped, "site.h": "/* the site's */"},
        "mine": {"hello.c": "/* mine */", "site.h": "/* the site's */"},
    }
    assert image.layers["check"] == {"hello": "shipped", "sites": "site", "mine": "project"}


def test_a_block_copies_files_of_its_layer_or_one_below(project: Path, site: Path) -> None:
    block = "runtime: [{copy: {src: [a.conf, b.conf], dest: /etc/}}]\n"
    written(site, {"recipes/more.yaml": MORE + block, "files/a.conf": "site", "files/b.conf": "b"})
    written(
        project, {"files/a.conf": "mine", "recipes/mine.yaml": MORE.replace("more", "mine") + block}
    )
    recipes = load_project(project).recipes
    assert recipes["more"].runtime[0].files == {"a.conf": "site", "b.conf": "b"}
    assert recipes["mine"].runtime[0].files == {"a.conf": "mine", "b.conf": "b"}


def test_facts_are_added_by_each_layer(project: Path, site: Path) -> None:
    row = '{family: openmpi, series: "77.%d", soname: libmpi.so.77, sources: [https://e.example]}'
    written(site, {"facts/mpi.yaml": f"releases: [{row % 1}, {row % 2}]\n"})
    written(project, {"facts/mpi.yaml": f"releases: [{row.replace('so.77', 'so.78') % 2}]\n"})
    facts = load_project(project).facts
    sonames = [
        series.soname
        for number in ("77.1", "77.2")
        if (series := facts.mpi_series("openmpi", number))
    ]
    assert sonames == ["libmpi.so.77", "libmpi.so.78"]


# ---- Locks ----


LOCKED = """\
schema: build-images/lock/v1
sources:
  - {{url: "{url}", file: "{file}", sha256: "{sha}", size: 3, recipes: ["{recipe}"]}}
references: []
"""
URL = "https://upstream.example/core.tar"
SOURCE = "sources: {one: local:vendor/own.tar}\ndevelopment:\n  - generic_cmake: "
BLOCK = '{url: "{{ sources.one.url }}", prefix: /opt/one}\n'


@pytest.mark.parametrize("recipe", ["", "more"])
def test_a_projects_lock_has_only_what_it_does_not_inherit(
    project: Path, shipped: Path, capsys: Capture, recipe: str
) -> None:
    """The shipped app, and what is locked for it, is not for the project's architecture."""
    sha = "1" * 64
    lock = LOCKED.format(url=URL, file="core.tar", sha=sha, recipe="core")
    lock += LOCKED.format(url=f"{URL}.app", file="app.tar", sha=sha, recipe="app").split("\n")[2]
    lock = lock.replace("references: []\n", "") + "\nreferences: []\n"
    (shipped / "lock.yaml").write_text(lock)
    for name, url in (("core", URL), ("app", f"{URL}.app")):
        text = (shipped / f"recipes/{name}.yaml").read_text().replace("development:\n", "")
        block = f"\n\ndevelopment:\n  - generic_cmake: {{url: {url}, prefix: /opt/{name}}}\n"
        text = text.replace("\n\n", block, 1)
        (shipped / f"recipes/{name}.yaml").write_text(text)
    (project / "matrix.yaml").write_text("axes: {arch: [ppc64le], mpi: [openmpi5.0]}\n")
    written(project, {"recipes/more.yaml": MORE + SOURCE + BLOCK, "vendor/own.tar": "own"})
    selector = ["--recipe", recipe] if recipe else []
    argv = ["--project", str(project), *selector]
    assert main(["lock", "--check", *argv]) == 0
    assert "1 source and 0 base images are not locked yet" in capsys.readouterr().out
    assert main(["lock", "--quiet", *argv]) == 0
    expected = "lock.yaml: 3 sources, 2 of them inherited; 1 new, 0 changed, 0 removed"
    assert expected in capsys.readouterr().out
    written_lock = (project / "lock.yaml").read_text()
    assert ("local:vendor/own.tar" in written_lock, URL in written_lock) == (True, False)
    assert (shipped / "lock.yaml").read_text() == lock
    loaded = load_project(project)
    assert loaded.lock.sources[URL].sha256 == sha
    own = hashlib.sha256(b"own").hexdigest()
    assert loaded.lock.sources["local:vendor/own.tar"].sha256 == own
    assert main(["lock", "--check", *argv]) == 0
    assert capsys.readouterr().out == "lock.yaml matches the recipes\n"
    (project / "lock.yaml").unlink()
    (project / "recipes/more.yaml").write_text(MORE)
    assert main(["lock", "--quiet", "--project", str(project)]) == 0
    expected = "lock.yaml: 2 sources, 2 of them inherited; nothing to write"
    assert (expected in capsys.readouterr().out, (project / "lock.yaml").exists()) == (True, False)


APP = (GOOD / "recipes/app.yaml").read_text().replace("axes:\n  arch: amd64\n", "")
OF_APP = APP + SOURCE.replace("own", "app") + BLOCK


@pytest.mark.parametrize(
    ("files", "locked"),
    [
        ({"recipes/more.yaml": MORE + SOURCE + BLOCK}, ["own"]),
        ({"recipes/app.yaml": OF_APP}, ["app"]),
        ({"base-images/debian13.yaml": (GOOD / "base-images/debian13.yaml").read_text()}, ["app"]),
        ({"matrix.yaml": "axes: {arch: [x86_64, ppc64le]}\n"}, ["app"]),
        ({"matrix.yaml": "axes: {arch: [x86_64]}\n"}, []),
        ({"facts/mpi.yaml": "releases: []\n"}, ["app"]),
    ],
)
def test_without_selectors_what_a_project_adds_or_replaces_is_locked(
    project: Path, shipped: Path, capsys: Capture, files: dict[str, str], locked: list[str]
) -> None:
    """The pins of other images, which --all has written, are kept while they are needed."""
    axes = "{arch: [x86_64], base: [debian13], cuda: [none], mpi: [openmpi5.0]}"
    written(shipped, {"matrix.yaml": f"axes: {axes}\ninherit: false\n", "recipes/app.yaml": OF_APP})
    written(project, {"vendor/own.tar": "own", "vendor/app.tar": "app", **files})

    def pins() -> list[str]:
        assert main(["lock", "--check", "--project", str(project)]) == 0
        assert capsys.readouterr().out.endswith("lock.yaml matches the recipes\n")
        return [Path(url).stem for url in load_project(project).lock.sources]

    def lock(*options: str) -> list[str]:
        assert main(["lock", "--quiet", "--project", str(project), *options]) == 0
        return pins()

    assert lock() == locked
    everything = sorted({"app", *locked})
    assert lock("--all") == lock() == everything
    if locked != ["app"]:
        (shipped / "recipes/app.yaml").write_text(APP)
        assert main(["lock", "--check", "--project", str(project)]) == 2
        assert "local:vendor/app.tar: app does not use it" in capsys.readouterr().err
        assert lock() == locked


def test_a_lock_of_a_recipe_that_the_layer_lacks_is_told(project: Path, shipped: Path) -> None:
    (shipped / "lock.yaml").write_text(
        LOCKED.format(url=URL, file="core.tar", sha="1" * 64, recipe="more")
    )
    written(project, {"recipes/more.yaml": MORE})
    found = f'shipped:lock.yaml:3: recipes: {URL} is locked for an unknown recipe: "more"'
    lines = messages(project)
    again = f"in that layer: build-images lock --project {shipped}, which removes the entry"
    assert lines[lines.index(found) + 1].strip() == again


def test_a_broken_link_is_not_replaced_by_an_inherited_file(project: Path) -> None:
    (project / "tests/images").mkdir(parents=True)
    (project / "tests/images/run-checks").symlink_to("nowhere")
    with pytest.raises(BadInput, match="cannot read this file"):
        plan_of(load_project(project), EVERYTHING)


@pytest.mark.parametrize("text", ["", "# mine\n"])
def test_the_fault_of_an_empty_matrix_says_how_to_inherit(project: Path, text: str) -> None:
    (project / "matrix.yaml").write_text(text)
    assert "    write {} to inherit everything" in messages(project)


READ = ("matrix.yaml", "recipes/a.yml", "base-images/b.yml", "files/c/d", "facts/cuda.yaml")


@pytest.mark.parametrize("file", READ)
def test_the_wheel_has_what_the_loader_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    patterns = runpy.run_path(str(ROOT / "setup.py"))["SHIPPED"]
    written(tmp_path, {file: ""})
    matching = {path for pattern in patterns for path in tmp_path.glob(pattern) if path.is_file()}
    assert matching == {tmp_path / file}


@pytest.mark.parametrize("file", [*READ, "tests/images/a.c", "lock.yaml", "hosts/node.yaml"])
def test_any_file_makes_a_layer(project: Path, site: Path, file: str) -> None:
    written(site, {file: ""})
    layers_of(project, faults := Faults())
    assert faults.found == []


# ---- Other machines, and provenance ----


def packed(project: Path, target: Path, *local: str) -> Path:
    for name, path in packed_files(project, local).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / name)
    return target


def test_a_packed_project_gives_the_same_images_anywhere(
    project: Path, site: Path, shipped: Path, tmp_path: Path
) -> None:
    written(
        site, {"recipes/core.yaml": (GOOD / "recipes/core.yaml").read_text() + "command: [sh]\n"}
    )
    written(site, {"hosts/node.yaml": "no input of an image"})
    written(project, {"recipes/more.yaml": MORE, "vendor/own.tar": "own", "out/image.sif": "no"})
    before = keys(load_project(project))
    copy = packed(project, tmp_path / "copy", "vendor/own.tar")
    for folder in (site, shipped):
        shutil.rmtree(folder)
    assert keys(load_project(copy)) == before
    names = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert names == {
        *("matrix.yaml", "recipes/more.yaml", "vendor/own.tar", ".layers/site/recipes/core.yaml"),
        *(
            f".layers/shipped/{path.relative_to(GOOD).as_posix()}"
            for path in [*GOOD.rglob("*"), GOOD / "tests/images/run-checks"]
            if not path.is_dir()
        ),
    }
    assert keys(load_project(packed(copy, tmp_path / "again"))) == before
    plan = plan_of(load_project(copy), EVERYTHING)
    assert len(compile_images(copy, plan.images)) == len(before)


def test_no_file_of_others_is_packed(project: Path, site: Path, tmp_path: Path) -> None:
    hidden, named = ("recipes/.env", "base-images/.old/a"), ("files/.condarc", "files/licence")
    written(project, {"recipes/more.yaml": MORE, **dict.fromkeys((*hidden, named[0]), "text")})
    (tmp_path / "licence").write_text("of the site")
    (project / "files/licence").symlink_to(tmp_path / "licence")  # a source that the user names
    files = packed_files(project, ["files/licence"])
    assert {*named} <= {*files}
    assert not {*hidden} & {*files, *project_digests(project)}
    (project / "files/licence").unlink()
    (project / "recipes/same.yaml").symlink_to("more.yaml")
    assert "recipes/same.yaml" in packed_files(project)
    (tmp_path / "secret").write_text("secret")
    for layer in (project, site):
        link = layer / "tests/images/other.c"
        link.parent.mkdir(exist_ok=True, parents=True)
        link.symlink_to(tmp_path / "secret")
        with pytest.raises(BadInput, match=r"tests/images/other\.c: a link out of the project"):
            packed_files(project)
        link.unlink()


def test_provenance_names_the_layer_of_each_file_that_is_used(project: Path, site: Path) -> None:
    core = (GOOD / "recipes/core.yaml").read_text()
    written(site, {"recipes/core.yaml": core, "recipes/more.yaml": MORE})
    written(project, {"recipes/more.yml": MORE})
    assert set(project_digests(project)) == {
        *("matrix.yaml", "site.yaml", "recipes/more.yml", "site:recipes/core.yaml"),
        *("shipped:matrix.yaml", "shipped:tests/images/checks.yaml", "shipped:recipes/app.yaml"),
        "shipped:base-images/debian13.yaml",
    }


# ---- What explain says ----


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_explain_says_which_layer_a_value_is_from(
    project: Path, shipped: Path, capsys: Capture, words: list[str]
) -> None:
    written(project, {"recipes/more.yaml": MORE})
    argv = ["--recipe", "more", "--arch", "x86_64", "--cuda", "none", "--project", str(project)]
    assert main(["explain", *argv, *words]) == 0
    shown = capsys.readouterr().out
    assert "from shipped: recipe core; base debian13; axis arch, base, cuda; check hello" in shown
    assert "from project: recipe more; axis mpi" in shown
    assert ('"more": "project"' in shown) == bool(words)
    assert shown.endswith(f"\nshipped: {shipped}\n") != bool(words)


@pytest.mark.parametrize("command", ["plan", "lint"])
def test_commands_of_such_a_project(project: Path, capsys: Capture, command: str) -> None:
    written(project, {"recipes/more.yaml": MORE})
    argv = ["--recipe", "more", "--arch", "x86_64", "--cuda", "none", "--project", str(project)]
    assert main([command, *argv]) == 0
    expected = {"plan": "more-1.0-debian13-openmpi5.0-x86_64", "lint": "0 errors"}
    assert expected[command] in "".join(capsys.readouterr())
