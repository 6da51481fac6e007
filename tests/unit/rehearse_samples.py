"""Small answers of an index, source distributions, and steps of specs for rehearsals."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import struct
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from samples import ROOT, a_file, shipped_project, tar_bytes

from builder.compile import spec
from builder.model import PlannedImage, Selection
from builder.plan import make_plan
from builder.system.process import Completed, Processes
from builder.verify.rehearse.imports import LibraryTrials
from builder.verify.rehearse.packages import Archives, PackageTrials
from builder.verify.rehearse.python_packages import CondaTrials, PythonTrials
from builder.verify.rehearse.rehearsal import Rehearsal
from builder.verify.rehearse.resolution import Resolver, RunPip
from builder.verify.rehearse.servers import Answer, Index, NotOnServer, SourceTrials, Unavailable
from builder.verify.rehearse.steps import PythonTarget, Step
from builder.verify.rehearse.workspace import SourceWorkspace, write_file

BIONIC = PythonTarget(arch="ppc64le", python="3.6.9", pip="9.0.1", glibc="2.27")
CENTOS = PythonTarget(arch="x86_64", python="3.6.8", pip="9.0.3", glibc="2.17")
INDEX = yaml.safe_load((ROOT / "tests/data/rehearsal/index.yaml").read_text())


def sample_index() -> Index:
    """An index with recorded pages; it cannot be reached for a project named `silent`."""

    def read(url: str, accept: str = "") -> bytes:
        *_, project, name = url.split("/")
        if name:
            return source_archive(name)
        if project == "silent":
            raise Unavailable("index.example cannot be reached: no route")
        if project not in INDEX["files"]:
            raise NotOnServer(f"it has no {project} ({accept})")
        rows = [
            {"filename": name, "url": f"https://index.example/{name}", "requires-python": python}
            for name, python in INDEX["files"][project].items()
        ]
        return json.dumps({"files": rows}).encode()

    return Index("https://index.example", read)


def source_archive(name: str) -> bytes:
    folder = name.removesuffix(".tar.gz").removesuffix(".zip")
    return tar_bytes(
        *(a_file(f"{folder}/{path}", text) for path, text in INDEX["sources"][name].items())
    )


def sample_pip(index: Index) -> RunPip:
    """What pip does of its resolutions, for packages without conflicts: the newest of each."""

    def run(arguments: Sequence[str]) -> Completed:
        values = dict(itertools.pairwise(arguments))
        stand_ins, report = values["--extra-index-url"], values["--report"]
        waiting = [
            word for word in arguments[arguments.index(report) + 1 :] if not word.startswith("-")
        ]
        platforms = {
            following for word, following in itertools.pairwise(arguments) if word == "--platform"
        }
        install: dict[str, dict[str, Any]] = {}
        for text in waiting:
            requirement = Requirement(text)
            wheels = _wheels(index, requirement, stand_ins, {*platforms, "any"})
            if not wheels:
                error = f"ERROR: No matching distribution found for {requirement}\n"
                return Completed(argv=(), returncode=1, stderr=error)
            version, url = max(wheels)
            requires = _required(requests.get(url, timeout=9)) if stand_ins in url else []
            metadata = {"name": requirement.name, "version": str(version)}
            install[requirement.name] = {"metadata": metadata, "download_info": {"url": url}}
            waiting += [text for text in requires if not Requirement(text).marker]
        Path(report).write_text(json.dumps({"install": [*install.values()]}))
        return Completed(argv=(), returncode=0)

    return run


def _wheels(
    index: Index, requirement: Requirement, stand_ins: str, platforms: set[str]
) -> list[tuple[Version, str]]:
    """The versions and URLs of the wheels that meet a requirement, of both indexes."""
    project = canonicalize_name(requirement.name)
    page = requests.get(f"{stand_ins}{project}/", timeout=9)
    if not page.ok:
        return []
    urls = [urljoin(stand_ins, row["url"]) for row in page.json()["files"]]
    urls += [file.url for file in index.files(project) if file.tags]
    wheels = [(parse_wheel_filename(url.rpartition("/")[2]), url) for url in urls]
    return [
        (version, url)
        for (_, version, _, tags), url in wheels
        if requirement.specifier.contains(version)
        and any(tag.platform in platforms for tag in tags)
    ]


def _required(response: requests.Response) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(response.content)) as wheel:
        [path] = [name for name in wheel.namelist() if name.endswith("METADATA")]
        lines = wheel.read(path).decode().splitlines()
    marker = "Requires-Dist: "
    return [line.removeprefix(marker) for line in lines if line.startswith(marker)]


def python_trials(silent: str = "developer.example") -> PythonTrials:
    """Trials against the sample index; the server named `silent` does not answer."""
    index = sample_index()

    def ask(url: str) -> Answer:
        if silent in url:
            return Answer(has=None, text=f"{silent} cannot be reached: no route")
        return Answer(has=True)

    return PythonTrials(Resolver(index=index, run_pip=sample_pip(index)), ask)


def sample_rehearsal(silent: str = "://", **repositories: Mapping[str, str]) -> Rehearsal:
    """A rehearsal against recorded answers; `silent` is a part of URLs whose servers are silent."""
    nothing = Answer(has=None, text="no server is asked")
    return Rehearsal(
        python=python_trials(silent=silent),
        conda=CondaTrials(lambda *_: "no server is asked"),
        sources=SourceTrials(lambda _: nothing, lambda _: Path("/nonexistent")),
        packages=PackageTrials(lambda _: b"", Archives()),
        libraries=LibraryTrials(lambda _: wheel()),
        workspace_of=lambda _: temporary_workspace(**repositories),
    )


@functools.cache
def shipped(identifier: str) -> PlannedImage:
    """A cell of the shipped recipes."""
    selection = Selection(images=(identifier,))
    return make_plan(shipped_project(), selection, compiler=spec.COMPILER).images[0]


def outcomes(trials: object) -> list[str]:
    return [trial.outcome for trial in trials]  # type: ignore[attr-defined]


def step(command: str, *, folder: str = "/", line: int = 1, final: bool = False) -> Step:
    """One command without assignments before it."""
    return Step(
        argv=tuple(command.split()),
        variables={},
        folder=folder,
        line=line,
        layer=line,
        final=final,
        has_fallback=False,
    )


def workspace(root: Path, **repositories: Mapping[str, str]) -> SourceWorkspace:
    """A workspace where clones have files: repositories by their names."""

    def check_out(url: str, _: str, folder: Path) -> str:
        name = url.rpartition("/")[2].removesuffix(".git")
        for path, text in repositories.get(name, {}).items():
            write_file(folder / path, text.encode())
        return "" if name in repositories else "no copy of it"

    return SourceWorkspace(root=root, check_out=check_out, processes=Processes())


@contextlib.contextmanager
def temporary_workspace(**repositories: Mapping[str, str]) -> Iterator[SourceWorkspace]:
    with tempfile.TemporaryDirectory() as root:
        yield workspace(Path(root), **repositories)


def library(*needed: str) -> bytes:
    """An ELF file for x86_64 whose dynamic section names libraries, and nothing else."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in needed)
    offsets = [names.index(b"\0" + name.encode() + b"\0") + 1 for name in needed]
    dynamic = b"".join(struct.pack("<qQ", 1, offset) for offset in offsets)
    dynamic += struct.pack("<qQ", 5, 64) + struct.pack("<qQ", 0, 0)
    titles = b"\0.dynstr\0.dynamic\0.shstrtab\0"
    start = 64
    places = [start, start + len(names), start + len(names) + len(dynamic)]
    end = places[2] + len(titles)
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, end, 0, 64, 0, 0, 64, 4, 3)

    def section(name: int, kind: int, place: int, size: int, link: int = 0, each: int = 0) -> bytes:
        return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, place, size, link, 0, 1, each)

    sections = section(0, 0, 0, 0) + section(1, 3, places[0], len(names))
    sections += section(9, 6, places[1], len(dynamic), link=1, each=16)
    sections += section(18, 3, places[2], len(titles))
    return header + names + dynamic + titles + sections


def wheel(**libraries: bytes) -> bytes:
    """A wheel with libraries, by the first part of their names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zipped:
        zipped.writestr("sample/__init__.py", "")
        for name, data in libraries.items():
            zipped.writestr(f"sample/{name}.so", data)
    return buffer.getvalue()


def tar_of(path: Path, files: Mapping[str, str]) -> None:
    path.write_bytes(tar_bytes(*(a_file(name, text) for name, text in files.items())))
