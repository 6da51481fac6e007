"""Small values of the model, for tests that need one and change one thing in it."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import io
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from builder import __version__
from builder.compile import spec
from builder.facts import NO_FACTS, CudaRelease, Facts
from builder.load.project import load_project
from builder.model import (
    BaseImage,
    BlockUse,
    Bootstrap,
    Check,
    CudaSupport,
    Exclude,
    Layer,
    Layers,
    Lock,
    Matrix,
    PackagedMpi,
    Plan,
    PlannedImage,
    Project,
    Recipe,
    Selection,
    Site,
    Where,
)
from builder.plan import make_plan
from builder.plan.cells import any_matches

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "tests" / "data" / "proof"
GOLDEN = ROOT / "tests" / "golden"
EVERYTHING = Selection(everything=True)
MPI = PackagedMpi(
    family="openmpi", version="5.0.7", development=("libmpi-dev",), runtime=("mpi-bin",)
)


def compare_with_golden(text: str, name: str) -> None:
    """Compare all of a text with a file of tests/golden; UPDATE_GOLDEN=1 writes it anew."""
    file = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    assert text == file.read_bytes().decode(), f"{name} changed; UPDATE_GOLDEN=1 writes it anew"


def compare_page_with_golden(page: Path, name: str, folder: Path) -> None:
    """The same of a page: without style sheet and scripts, the folder of the test, the version."""
    text = re.sub(r"(?s)<(style|script)\b.*?</\1>", r"<\1/>", page.read_text(encoding="utf-8"))
    text = text.replace(str(folder), "HERE")
    text = text.replace(f"build-images {__version__}", "build-images VERSION")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    compare_with_golden("\n".join([*lines, ""]), name)


@functools.cache
def private_file(name: str) -> Path:
    """A key of the test data in a file that is this user's alone, which git cannot say of it."""
    folder = Path(tempfile.mkdtemp(prefix="build-images-keys."))
    atexit.register(shutil.rmtree, folder)
    file = folder / f"{name}.key"
    shutil.copyfile(PROOF / file.name, file)
    file.chmod(0o600)
    return file


def cuda_release(version: str = "12.4", **changes: Any) -> CudaRelease:
    made = CudaRelease(
        version=version,
        update=f"{version}.1",
        driver="525.60.13",
        shipped_driver="550.54.15",
        architectures=("x86_64", "ppc64le"),
        capabilities=("70", "80"),
        gcc="13",
        repositories={"x86_64": ("debian13",), "ppc64le": ("rhel8",)},
        images={"x86_64": ("debian13",)},
        image_tag=f"{version}.1",
        sources=("https://docs.example.org/cuda",),
        notes="",
        where=where("facts/cuda.yaml", 7),
    )
    return dataclasses.replace(made, **changes)


def facts_with(*releases: CudaRelease) -> Facts:
    return dataclasses.replace(NO_FACTS, cuda={one.version: one for one in releases})


@functools.cache
def shipped_project() -> Project:
    return load_project(ROOT, block_faults=spec.block_faults)


@functools.cache
def shipped_plan() -> Plan:
    return make_plan(shipped_project(), EVERYTHING, compiler=spec.COMPILER)


@functools.cache
def shipped_images() -> tuple[PlannedImage, ...]:
    """The images of `shipped_plan`, planned without the 100,000 cells that limits exclude."""
    shipped = shipped_project()
    names = sorted(shipped.recipes, key=lambda name: (len(shipped.chain(name)), name))
    selected = [{"recipe": (name,), **_limits(shipped, name)} for name in names]
    plans = [
        make_plan(shipped, Selection(patterns=patterns), compiler=spec.COMPILER)
        for patterns in selected
    ]
    return tuple(image for plan in plans for image in plan.images)


def _limits(shipped: Project, recipe: str) -> dict[str, tuple[str, ...]]:
    """The values of each axis that a recipe and its ancestors allow."""
    limits = [limit for ancestor in shipped.chain(recipe) for limit in ancestor.limits.items()]
    return {
        axis: tuple(
            value
            for value in values
            if all(any_matches(axis, allowed, value) for name, allowed in limits if name == axis)
        )
        for axis, values in shipped.matrix.axes.items()
    }


@functools.cache
def default_plan() -> Plan:
    """The plan of what is built without a selector."""
    return make_plan(shipped_project(), Selection(), compiler=spec.COMPILER)


@functools.cache
def plan_of(recipe: str) -> Plan:
    """The plan of one shipped recipe's cells: a part of the matrix is planned sooner than all."""
    selection = Selection(patterns={"recipe": (recipe,)})
    return make_plan(shipped_project(), selection, compiler=spec.COMPILER)


def where(file: str, line: int = 1, key: str = "") -> Where:
    return Where(file=file, line=line, key=key)


def block(name: str = "packages", *, line: int = 5, **arguments: Any) -> BlockUse:
    return BlockUse(
        name=name,
        arguments=arguments,
        where=where("recipes/core.yaml", line, f"development[0].{name}"),
        lines=dict.fromkeys(arguments, line + 1),
    )


def recipe(name: str = "core", **changes: Any) -> Recipe:
    made = Recipe(
        name=name,
        version="1.0",
        about=f"the recipe {name}",
        parent=None,
        limits={},
        development=(),
        runtime=(),
        environment={},
        labels={},
        checks=(),
        where=where(f"recipes/{name}.yaml"),
    )
    return dataclasses.replace(made, **changes)


def base(name: str = "debian13", **changes: Any) -> BaseImage:
    made = BaseImage(
        name=name,
        about="Debian 13",
        distribution="debian",
        version="13",
        hpccm_distro="ubuntu24",
        architectures=("x86_64", "ppc64le"),
        bootstrap=Bootstrap(
            suite="trixie",
            components=("main",),
            packages=("ca-certificates",),
            keyring="sample-keyring.gpg",
        ),
        references={},
        mpi=(MPI,),
        cuda=CudaSupport(),
        where=where(f"base-images/{name}.yaml"),
    )
    return dataclasses.replace(made, **changes)


def check(name: str = "hello", **changes: Any) -> Check:
    made = Check(
        name=name,
        about=f"the check {name}",
        sources=(f"{name}.c",),
        build=(f"cc -o $OUT/{name} $SRC/{name}.c",),
        run=f"{name} {{{{ arch }}}}",
        needs=(),
        timeout_s=60,
        where=where("tests/images/checks.yaml"),
    )
    return dataclasses.replace(made, **changes)


def alone(root: Path) -> Layers:
    """The layers of a project that inherits nothing."""
    return Layers(each=(Layer(name="project", folder=root),))


def project(
    root: Path,
    *,
    recipes: Iterable[Recipe] = (recipe(),),
    bases: Iterable[BaseImage] = (base(),),
    checks: Iterable[Check] = (),
    excludes: Iterable[Exclude] = (),
    default: dict[str, tuple[str, ...]] | None = None,
    run_checks: str = "#!/bin/sh\n",
    facts: Facts = NO_FACTS,
    site: Site | None = None,
    lock: Lock | None = None,
    **axes: tuple[str, ...],
) -> Project:
    """A project without faults, its checks' sources written below `root`."""
    folder = root / "tests" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run-checks").write_text(run_checks)
    for one in checks:
        for name in one.sources:
            if not (folder / name).exists():
                (folder / name).write_text(f"/* {name} */\n")
    values = {"arch": ("x86_64",), "base": ("debian13",), "cuda": ("none",), "mpi": ("none",)}
    return Project(
        layers=alone(root),
        matrix=Matrix(
            axes={**values, **axes},
            excludes=tuple(excludes),
            default=default or {},
            where=where("matrix.yaml"),
        ),
        recipes={one.name: one for one in recipes},
        bases={one.name: one for one in bases},
        checks={one.name: one for one in checks},
        facts=facts,
        site=site or Site(),
        lock=lock or Lock(),
    )


def image(root: Path, **parts: Any) -> PlannedImage:
    """The first image of a tiny project."""
    return make_plan(project(root, **parts), EVERYTHING, compiler="hpccm 1").images[0]


def tar_bytes(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A tar of these members, in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in members:
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def blob(folder: Path, data: bytes) -> Path:
    """A file named for its SHA-256."""
    path = folder / hashlib.sha256(data).hexdigest()
    path.write_bytes(data)
    return path


def member(
    name: str, kind: bytes = tarfile.REGTYPE, *, mode: int = 0o644, target: str = ""
) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname = kind, mode, target
    return made


def a_file(name: str, text: str = "text", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    made = member(name, mode=mode)
    made.size = len(text.encode())
    return made, text.encode()


def a_folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, tarfile.DIRTYPE, mode=mode), b""


def a_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, tarfile.SYMTYPE, mode=0o777, target=target), b""


def a_hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, tarfile.LNKTYPE, target=target), b""
