"""Kits: an image and its checks in one file, for a node without this program.

A kit has an argv for each command that `verify` would run in a container, recorded from the code
that runs it. `kit/run` executes them on the node; `kit_evidence` judges what they printed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import posixpath
import re
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from builder import __version__
from builder.artifacts.oci import read_layout
from builder.artifacts.tree import clean
from builder.build.engines import Tools
from builder.build.engines.apptainer import environment as apptainer_environment
from builder.build.run import Run, now
from builder.model.digests import digest_of_file
from builder.model.errors import BadInput, Refused
from builder.model.manifest import FILES, MANIFEST, InImageCheck
from builder.model.records import read, write
from builder.system.files import read_json, replacing, writable_folder, write_atomically
from builder.system.process import Completed
from builder.verify.checks import DRIVER_LIBRARIES
from builder.verify.finished_images import OpenImage, opened, read_finished
from builder.verify.formats import tree_of_artifact
from builder.verify.measure.programs import KitProgram, programs_for_kits
from builder.verify.proof import WITHHELD_CHECK, outcomes_of
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import HOME_IN_CONTAINER, PRIVATE_HOME, Container
from builder.verify.runners.sites import SETTINGS, apptainer_argv, ch_run_argv
from builder.verify.targets import ProofTarget, expected_target, with_carried

KIT_FORMATS = ("sif", "charliecloud")  # an ordinary user can run these without a daemon
RECORDS = "kits"  # the folder of an image with the descriptions of its kits
_PROGRAM = Path(__file__).parent / "kit" / "run"
_SCHEMA, _IMAGE, _SCRATCH = "build-images/kit/v1", "@IMAGE@", "@SCRATCH@"


@dataclass(frozen=True, kw_only=True, slots=True)
class KitStep:
    """A command in a container.

    Those `without_gpu` run in a second container, if GPUs were passed to the first.
    """

    check: str
    argv: tuple[str, ...]
    timeout_s: int
    needs_gpu: bool
    without_gpu: bool

    @property
    def key(self) -> tuple[tuple[str, ...], bool]:
        """The command within a run: argv and container."""
        return self.argv, self.without_gpu


@dataclass(frozen=True, kw_only=True, slots=True)
class KitArtifact:
    """An image file in the kit."""

    file: str
    digest: str
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class KitEngine:
    """The argv before a command in a container, with and without GPUs, and its variables."""

    format: str
    argv: tuple[str, ...] = ()
    gpu_argv: tuple[str, ...] = ()
    variables: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kit:
    """`kit.json`: all that the kit's program knows of the image.

    `unset` is a pattern of the caller's variables that no engine gets, `oci` the digest of the
    artifacts' image. With `checks_only`, they hold what the checks need, and prove the node alone.
    """

    schema: str = _SCHEMA
    id: str
    image: str
    arch: str
    content_key: str
    oci: str
    created: str
    version: str
    directory: str
    environment: Mapping[str, str]
    unset: str
    artifacts: Mapping[str, KitArtifact]
    engines: Mapping[str, KitEngine]
    steps: tuple[KitStep, ...]
    programs: tuple[KitProgram, ...] = ()
    checks_only: bool = False


# ---- The commands ----


@dataclass(frozen=True, slots=True)
class _Recorder:
    """A runner that only notes the commands; each of them seems to fail."""

    note: Callable[[tuple[str, ...], float], object]

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        self.note(tuple(argv), timeout_s)
        return Completed(argv=tuple(argv), returncode=1)


def steps_of(target: ProofTarget, tools: Tools) -> tuple[KitStep, ...]:
    """Return the commands that the verification of an image runs in its containers, in order."""
    steps: list[KitStep] = []
    checks = {check.script: check for check in target.checks}

    def note(without_gpu: bool, argv: tuple[str, ...], timeout_s: float) -> None:
        check = checks.get(argv[0])
        own = WITHHELD_CHECK if without_gpu else "environment"
        steps.append(
            KitStep(
                check=check.name if check else own,
                argv=argv,
                timeout_s=int(timeout_s),
                needs_gpu=bool(check and check.needs_gpu),
                without_gpu=without_gpu,
            )
        )

    @contextlib.contextmanager
    def recorded(container: Container) -> Iterator[_Recorder]:
        yield _Recorder(partial(note, target.needs_gpu and not container.gpu))

    kind = dataclasses.replace(RUNNERS["apptainer"], open=recorded)
    outcomes_of(target, kind, container_of(tools, gpu=target.needs_gpu))
    return tuple(steps)


def container_of(tools: Tools, *, directory: str = "/", gpu: bool) -> Container:
    """Return a container with the names by which the kit's program fills in its own paths."""
    artifact, work = Path(_IMAGE), Path(_SCRATCH)
    place = Container(artifact=artifact, work=work, tools=tools, directory=directory, gpu=gpu)
    return dataclasses.replace(place, binds={PRIVATE_HOME: work / "home"})


def _engines(target: ProofTarget, tools: Tools, *, checks_only: bool) -> dict[str, KitEngine]:
    """Return the engines; Apptainer runs the checks without the image in the unpacked folder."""
    # A folder has no script that names the driver's libraries, as a SIF has.
    own = {"LD_LIBRARY_PATH": DRIVER_LIBRARIES, **target.environment} if checks_only else {}
    variables = {f"APPTAINERENV_{name}": text for name, text in own.items()}
    place = partial(container_of, tools, directory=target.directory)
    without, gpus = place(gpu=False), place(gpu=True)
    return {
        "apptainer": KitEngine(
            format="charliecloud" if checks_only else "sif",
            argv=tuple(apptainer_argv("apptainer", without)),
            gpu_argv=tuple(apptainer_argv("apptainer", gpus)),
            variables={**apptainer_environment(Path(_SCRATCH)), **variables},
        ),
        "ch-run": KitEngine(
            format="charliecloud",
            argv=tuple(ch_run_argv("ch-run", without, _IMAGE, cdi=False)),
            gpu_argv=tuple(ch_run_argv("ch-run", gpus, _IMAGE, cdi=True)),
            variables={"TMPDIR": _SCRATCH},
        ),
        "userns": KitEngine(format="charliecloud", variables={}),
    }


# ---- Making a kit ----


def write_kit(
    run: Run, folder: Path, target: Path, formats: Sequence[str] = (), *, checks_only: bool = False
) -> Kit:
    """Write a kit of the image in an output folder to the file `target`; return its description.

    With `checks_only` it has the checks of MPI and GPUs, and what these need of the image. The
    description is also kept in the image's folder, for the import. Raises `BadInput` if the image
    has none of the formats, or a file that differs from its manifest.
    """
    manifest = read_finished(folder)
    own = (MANIFEST, *FILES.values(), *manifest.digests)
    if target.resolve() in [(folder / name).resolve() for name in own]:
        raise BadInput(f"{target}: a file of the image", hint="name another file for the kit")
    expected = expected_target(run.settings.project, manifest)
    with opened(folder, run.tools, expected) as complete:
        formats = KIT_FORMATS[1:] if checks_only else formats
        names = [name for name in formats or KIT_FORMATS if name in complete.artifacts]
        missing = [name for name in formats or KIT_FORMATS if name not in names]
        if missing and (formats or not names):
            raise BadInput(f"{folder.name} has no {' and no '.join(missing)}, which a kit runs")
        run.progress.step(folder.name, f"writing {target.name}")
        image = with_checks_alone(complete, run.tools) if checks_only else complete
        kit = _kit(image, names, run.tools, checks_only=checks_only)
        text = json.dumps(write(kit), indent=1, sort_keys=True) + "\n"
        record = folder / RECORDS / f"{kit.id}.json"
        _write_tar(target, text, [image.artifacts[name].path for name in names], record)
    return kit


def _kit(image: OpenImage, names: Sequence[str], tools: Tools, *, checks_only: bool) -> Kit:
    """Describe a kit with these formats of an image."""
    artifacts, manifest = {name: image.artifacts[name] for name in names}, image.record
    tree = tree_of_artifact(names[0], artifacts[names[0]].path, work=image.work, tools=tools)
    target = image.target if checks_only else with_carried(image.target, [tree])
    return Kit(
        id=secrets.token_hex(16),
        image=manifest.image,
        arch=manifest.cell.arch,
        content_key=manifest.content_key,
        oci=read_layout(image.artifacts["oci"].path).digest,
        created=now(),
        version=__version__,
        directory=target.directory,
        environment={**target.environment, "HOME": HOME_IN_CONTAINER},
        unset=SETTINGS.pattern,
        artifacts={
            name: KitArtifact(
                file=artifact.path.name, digest=artifact.digest, size=artifact.path.stat().st_size
            )
            for name, artifact in artifacts.items()
        },
        engines=_engines(target, tools, checks_only=checks_only),
        steps=steps_of(target, tools),
        programs=programs_for_kits({path for path, e in tree.entries.items() if e.kind == "file"}),
        checks_only=checks_only,
    )


def _write_tar(target: Path, text: str, images: Sequence[Path], record: Path) -> None:
    """Write the archive, and the record of it; it gets its name when both are complete."""
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise BadInput(f"{target}: not a file, or its folder does not exist")
    writable_folder(record.parent)
    contents = {"run": (_PROGRAM.read_bytes(), 0o755), "kit.json": (text.encode(), 0o644)}
    with replacing(target, alone=True) as partial_file:
        with tarfile.open(partial_file, "w", format=tarfile.GNU_FORMAT) as archive:
            for name, (content, mode) in contents.items():
                archive.addfile(_entry(name, len(content), mode), io.BytesIO(content))
            for path in images:
                with path.open("rb") as file:
                    archive.addfile(_entry(path.name, path.stat().st_size, 0o644), file)
        write_atomically(record, text, durable=True)


def _entry(name: str, size: int, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(f"kit/{name}")
    entry.size, entry.mode = size, mode
    return entry


def kit_named(name: str, folder: Path) -> Kit:
    """Return the kept description of a kit of an image; raises `Refused` if there is none."""
    file = folder / RECORDS / f"{name}.json"
    if not re.fullmatch("[0-9a-f]{32}", name) or not file.is_file():
        raise Refused(
            f"{folder.name}: no kit of this image has the name {name[:40]!r}",
            hint="import the evidence into the folder of the image that the kit was made from",
        )
    try:
        return read(Kit, read_json(file))
    except ValueError as error:
        raise BadInput(f"{file}: {error}") from error


# ---- The checks without the image ----

_NEEDS = frozenset({"gpu", "mpi"})
_MOST_BYTES = 140_000_000  # of files, at most some 60 MiB compressed; and of one that is searched
_FOLDERS = ("dev", "mnt", "proc", "root", "run", "sys", "tmp", "var/tmp")
_ALWAYS = (
    *("bin", "lib", "lib64", "sbin", "usr/bin/sh", "usr/bin/env", "usr/bin/cat"),
    *("etc/passwd", "etc/group", "etc/ld.so.cache", "etc/hosts", "etc/resolv.conf"),
    # ch-run finds the driver's libraries by ldconfig.
    *("ch/environment", "opt/build-images/host-contract.json", "usr/sbin/ldconfig"),
)
_PROGRAMS = re.compile(r"(?:usr(?:/local)?|opt/build-images)/s?bin/([^/]+)")
_LIBRARY = re.compile(rb"\b(?:lib[\w.+-]+?|ld[\w-]+?)\.so[.\d]*")
_LAUNCHERS = re.compile(rb"\b(?:prte\w*|prun|hydra_\w+|orted|orterun|mpiexec\.\w+)\b")
_WORD = re.compile(rb"/?[\w.+-][\w./+-]*")
# Plugins and texts of an MPI, which no program names; those for other GPUs bring compilers along.
_UNNAMED = re.compile(
    r"(?:.*/)?(?:openmpi|pmix2?|ucx|prr?te|mpich|hydra|libfabric|libibverbs|ld\.so\.conf.*)(?:/.*)?"
)
_UNUSED = re.compile(
    r".*(?:rocm|amdhip|amd_comgr|hsa-runtime).*|usr/share/doc/.*|(?:.*/)?include/.*"
    r"|.*\.(?:a|la|h|mod)"
)


def with_checks_alone(image: OpenImage, tools: Tools) -> OpenImage:
    """Return an image that has only the checks of MPI and GPUs, and the files that these need.

    Checks of which the files are too many, or that need Python, are left out.
    """
    plain, artifact = image.work / "image.tar", image.artifacts["charliecloud"]
    unpack = [tools.program("pigz"), "--decompress", "--stdout", str(artifact.path)]
    with tools.processes.reading_from(unpack) as stream, plain.open("wb") as file:
        shutil.copyfileobj(stream, file)
    with tarfile.open(plain) as archive:
        tree = _Tree(archive)
        chosen, paths = list[InImageCheck](), tree.needed(_ALWAYS)
        for check in image.target.checks:
            more = paths | tree.needed([check.script.lstrip("/")])
            fits = sum(tree.members[path].size for path in more) <= _MOST_BYTES
            if _NEEDS & {*check.needs} and fits and "usr/bin/python3" not in more:
                chosen.append(check)
                paths = more
        paths |= tree.needed(path for path in tree.members if _UNNAMED.fullmatch(path))
        target = image.work / "checks.tar.gz"
        tree.write(paths, target)
    if not chosen:
        raise BadInput(f"{image.record.image} has no check of MPI or GPUs for a kit without it")
    artifact = dataclasses.replace(artifact, path=target, digest=digest_of_file(target))
    return dataclasses.replace(
        image,
        artifacts={**image.artifacts, "charliecloud": artifact},
        target=dataclasses.replace(image.target, checks=tuple(chosen)),
    )


class _Tree:
    """The files of an image in an open tar, and what they name of each other."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self.members = {clean(member.name): member for member in archive}
        self._by_name: dict[bytes, list[str]] = {}
        self._named: dict[str, list[str]] = {}
        for path in self.members:
            match = _PROGRAMS.fullmatch(path)
            name = match[1] if match else path.rpartition("/")[2] if ".so" in path else ""
            if name:
                self._by_name.setdefault(name.encode(), []).append(path)

    def needed(self, paths: Iterable[str]) -> set[str]:
        """Return paths with those that they name, and their folders."""
        needed, todo = set[str](), [*paths, *_FOLDERS]
        while todo:
            path = todo.pop()
            if path in needed or path not in self.members or _UNUSED.fullmatch(path):
                continue
            needed.add(path)
            todo += [str(parent) for parent in PurePosixPath(path).parents]
            if path not in self._named:
                self._named[path] = [*self._named_by(path)]
            todo += self._named[path]
        return needed

    def _named_by(self, path: str) -> Iterator[str]:
        """Yield the target of a link, libraries and launchers of a program, words of a script."""
        member = self.members[path]
        if member.issym():
            joined = posixpath.join(posixpath.dirname(path), member.linkname)
            yield posixpath.normpath(joined).lstrip("/")
        elif member.islnk():
            yield clean(member.linkname)
        content = self._content(path) if member.size <= _MOST_BYTES else b""
        if content.startswith(b"\x7fELF"):
            for name in {*_LIBRARY.findall(content), *_LAUNCHERS.findall(content)}:
                yield from self._by_name.get(name, ())
        elif content.startswith(b"#!") or path.startswith("opt/build-images/src/"):
            content = content.replace(b"$SRC", b"/opt/build-images/src")
            content = content.replace(b"$OUT", b"/opt/build-images/bin")
            for word in _WORD.findall(content):
                yield from self._by_name.get(word, ())
                yield word.decode().lstrip("/")

    def _content(self, path: str) -> bytes:
        member = self.members[path]
        file = self._archive.extractfile(member) if member.isreg() else None
        return file.read() if file else b""

    def write(self, paths: Iterable[str], target: Path) -> None:
        """Write the files at these paths as a gzipped tar."""
        with tarfile.open(target, "w:gz", compresslevel=6) as reduced:
            for path in sorted(paths):
                reduced.addfile(self.members[path], io.BytesIO(self._content(path)))
