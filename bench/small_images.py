"""Small images in three formats, for verification to judge: a few programs, random files, checks.

They are packed by the project's own packers. What is in one of them is cut out of an image that is
there already, `hpc-base`: a shell, the tools that checks call, the program of the check
`architecture`, and the libraries that these need.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import random
import re
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from made_formats import Node

from builder.artifacts import flatten
from builder.artifacts.manifests import size_of
from builder.artifacts.oci import (
    LayerBlob,
    Layout,
    blob_path,
    finish_layout,
    read_layout,
    start_layout,
)
from builder.artifacts.repack import PlainLayout, unpack
from builder.build.engines import Tools, apptainer, charliecloud
from builder.compile.spec.driver import singularity_sections
from builder.model import FORMATS
from builder.model.architectures import ARCHITECTURES
from builder.model.digests import digest_of_file
from builder.model.manifest import FILES, MANIFEST, SCHEMA
from builder.system.locks import locked

PROJECT = Path(__file__).resolve().parents[1]
CHECKS = "opt/build-images/checks"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = (
    *("bash", "dash", "sh", "env", "cat", "cut", "head", "tail", "tr", "sort", "wc", "od", "ls"),
    *("mktemp", "rm", "sleep", "uname", "id", "true", "find", "grep", "sed", "mawk", "awk", "ldd"),
    "setsid",
)
_PATHS = (
    *(f"usr/bin/{name}" for name in PROGRAMS),
    *("usr/sbin/ldconfig", "usr/bin/su", "usr/bin/lscpu"),
    *("opt/build-images/bin/architecture", "opt/build-images/bin/libraries"),
    *("etc/os-release", "usr/lib/os-release"),
    *("etc/passwd", "etc/group", "etc/ld.so.conf", "etc/ld.so.cache", "etc/alternatives/awk"),
    *("bin", "lib", "lib64", "sbin", "usr/lib64/ld-linux-x86-64.so.2"),
    *("dev", "proc", "sys", "run", "tmp", "root", "home", "var", "var/tmp", "usr/local/bin"),
)
_LIBRARY = re.compile(rb"\b(?:lib[\w.+-]+?|ld[\w-]+?)\.so[.\d]*")


Tree = Mapping[str, Node | None]  # on the common base; None removes a path of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A check of a small image; `text` is its script."""

    name: str
    text: str
    timeout_s: int = 60
    needs: tuple[str, ...] = ()
    mode: int = 0o755


@dataclass(frozen=True, kw_only=True, slots=True)
class Small:
    """A small image; a tree and an environment of its own for each format, equal if it is sound.

    `directory` is the working directory of its programs.
    """

    identifier: str
    arch: str
    trees: Mapping[str, Tree]
    environments: Mapping[str, Mapping[str, str]]
    checks: tuple[Check, ...]
    directory: str = "/"

    def with_everywhere(self, changes: Tree) -> Small:
        """The same image with other things in all formats."""
        return dataclasses.replace(
            self, trees={name: {**tree, **changes} for name, tree in self.trees.items()}
        )

    def with_in(self, artifact_format: str, changes: Tree) -> Small:
        """The same image with other things in one format."""
        changed = {**self.trees[artifact_format], **changes}
        return dataclasses.replace(self, trees={**self.trees, artifact_format: changed})

    def with_variables(self, variables: Mapping[str, str], only: str = "") -> Small:
        """The same image with other variables, in one format or in all."""
        return dataclasses.replace(
            self,
            environments={
                name: dict(variables) if only in {"", name} else one
                for name, one in self.environments.items()
            },
        )

    def with_checks(self, *checks: Check) -> Small:
        """The same image with further checks."""
        return dataclasses.replace(self, checks=(*self.checks, *checks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """What all small images of an architecture have: a gzipped layer, and its paths."""

    arch: str
    blob: Path
    layer: LayerBlob
    things: Mapping[str, Node]


class Bases(dict[str, Base]):
    """Bases by architecture, each cut out of an image when it is first asked for.

    What was cut is kept beside the image, for other processes with the same image.
    """

    def __init__(self, images: Mapping[str, Path], work: Path) -> None:
        super().__init__()
        self._images, self._work = images, work

    def __missing__(self, arch: str) -> Base:
        image, work = self._images[arch], self._work / arch
        work.mkdir(parents=True, exist_ok=True)
        key = hashlib.sha256(read_layout(image / FILES["oci"]).digest.encode())
        for folder in ("bench", "builder/artifacts"):  # what cuts it
            for program in sorted((PROJECT / folder).glob("*.py")):
                key.update(program.read_bytes())
        cached = image.parent / f".small-base-{arch}-{key.hexdigest()[:16]}"
        with locked(image.parent, cached.name):
            if not cached.exists():
                for older in image.parent.glob(f".small-base-{arch}-*"):
                    older.unlink()
                base = base_of(image, work)
                partial = cached.with_suffix(".partial")
                partial.write_bytes(pickle.dumps((base, base.blob.read_bytes())))
                partial.rename(cached)
        base, content = pickle.loads(cached.read_bytes())
        self[arch] = dataclasses.replace(base, blob=work / base.blob.name)
        self[arch].blob.write_bytes(content)
        return self[arch]


def base_of(image: Path, work: Path) -> Base:
    """Cut the base of small images out of the image in an output folder."""
    layout = read_layout(image / FILES["oci"])
    nodes = flatten.flattened(unpack(layout, work / "plain").layout)
    things = {path: _thing(nodes[path]) for path in sorted(_wanted(nodes))}
    blob, layer = layer_in(things, work)
    arch = next(name for name, one in ARCHITECTURES.items() if one.oci == layout.architecture)
    shutil.rmtree(work / "plain")
    return Base(arch=arch, blob=blob, layer=layer, things=things)


def _wanted(nodes: Mapping[str, flatten.TreeNode]) -> set[str]:
    """The paths to be kept: links are followed, libraries found by their names in programs."""
    by_name = {
        path.rpartition("/")[2]: path
        for path in nodes
        if re.match(r"usr/lib/[\w-]+-linux-gnu/[^/]+$|usr/lib64/[^/]+$", path)
    }
    wanted: set[str] = set()
    todo = [path for path in _PATHS if path in nodes]
    while todo:
        path = todo.pop()
        if path in wanted or path not in nodes:
            continue
        wanted.add(path)
        folders = path.split("/")[:-1]
        todo += ["/".join(folders[: n + 1]) for n in range(len(folders))]
        node = nodes[path]
        if node.member.issym():
            target = node.member.linkname
            parent = path.rpartition("/")[0]
            todo.append(_normal(target if target.startswith("/") else f"{parent}/{target}"))
        elif node.member.isreg() and node.size and (data := node.read()).startswith(b"\x7fELF"):
            names = {found.decode() for found in _LIBRARY.findall(data)}
            todo += [by_name[name] for name in names if name in by_name]
    return wanted


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in {"", "."}:
            parts.append(part)
    return "/".join(parts)


def _thing(node: flatten.TreeNode) -> Node:
    member = node.member
    return Node(
        kind=tarfile.REGTYPE if node.member.isreg() else member.type,
        data=node.read() if node.member.isreg() else b"",
        target=member.linkname if member.issym() else "",
        mode=member.mode,
        uid=member.uid,
        gid=member.gid,
    )


def layer_in(things: Tree, folder: Path) -> tuple[Path, LayerBlob]:
    """Write a layer's blob into a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, thing in sorted(things.items()):
            if thing is None:
                parent, _, name = path.rpartition("/")
                gone = f"{parent}/.wh.{name}" if parent else f".wh.{name}"
                archive.addfile(tarfile.TarInfo(gone))
            else:
                archive.addfile(thing.member(path), io.BytesIO(thing.data))
    data = gzip.compress(buffer.getvalue(), compresslevel=1, mtime=0)
    name = hashlib.sha256(data).hexdigest()
    blob = folder / name
    blob.write_bytes(data)
    plain = hashlib.sha256(buffer.getvalue()).hexdigest()
    return blob, LayerBlob(diff_id=f"sha256:{plain}", digest=f"sha256:{name}", size=len(data))


def _folders(things: Tree, base: Base) -> dict[str, Node]:
    """The folders above things, which some formats would make by themselves and others not."""
    above = {path[:at] for path in things for at, letter in enumerate(path) if letter == "/"}
    return {
        path: Node(kind=tarfile.DIRTYPE, mode=0o755) for path in above if path not in base.things
    }


def sound(arch: str, number: int, rng: random.Random) -> Small:
    """A sound image: random files of odd names, sizes, modes and owners, and checks that pass."""
    tree = {"srv": Node(kind=tarfile.DIRTYPE, mode=0o755), **_random_things(rng)}
    environment = {
        "PATH": PATH,
        "MODE": rng.choice(["a b", "x=y", "été", ""]),
        f"SITE_{rng.randrange(1000)}": str(rng.random()),
    }
    return Small(
        identifier=f"small-{number}-{arch}",
        arch=arch,
        trees=dict.fromkeys(FORMATS, tree),
        environments=dict.fromkeys(FORMATS, environment),
        checks=(
            Check(name="architecture", text=f"/opt/build-images/bin/architecture {arch}"),
            rng.choice(_SOUND_CHECKS),
        ),
        directory=rng.choice(["/", "/srv"]),
    )


_SOUND_CHECKS = (
    Check(name="speaks", text="echo 'data: {\"n\": 1}'; echo all is well"),
    Check(name="skips", text="echo no GPU here; exit 77", needs=("gpu",)),
    Check(name="noisy", text="head -c 3000000 /dev/zero | tr '\\0' x; echo; echo all is well"),
    Check(name="quick", text="sleep 0.1; printf 'all is well'"),
    Check(name="leaves", text="(sleep 300 &) ; echo all is well"),
    Check(name="files", text="ls -lR /srv >/dev/null && echo every file is there"),
)
_NAMES = ("data", "a b", "été", "x'y", "-n", "UPPER", "dot.d", "naïve name", "100%", "#1", "a;b")
_OWNERS = ((0, 0), (0, 0), (0, 42), (1000, 1000), (65534, 65534), (33, 0))


def _random_things(rng: random.Random) -> dict[str, Node]:
    things: dict[str, Node] = {}
    folders = ["srv"]
    for number in range(rng.randint(5, 25)):
        path = f"{rng.choice(folders)}/{number} {rng.choice(_NAMES)}"
        uid, gid = rng.choice(_OWNERS)
        what = rng.choice(["file", "file", "file", "file", "folder", "link"])
        if what == "folder":
            things[path] = Node(kind=tarfile.DIRTYPE, mode=rng.choice([0o755, 0o2755, 0o1777]))
            folders.append(path)
        elif what == "link":
            target = rng.choice(["../usr/bin/env", "/nowhere", "0 data", "."])
            things[path] = Node(kind=tarfile.SYMTYPE, target=target, uid=uid, gid=gid)
        else:
            size = rng.choice([0, 1, 100, 5000, 70_000])
            mode = rng.choice([0o644, 0o755, 0o600, 0o4755, 0o2755, 0o444])
            things[path] = Node(data=rng.randbytes(size), mode=mode, uid=uid, gid=gid)
    things["srv/certain"] = Node(data=rng.randbytes(200), mode=0o4755, uid=0, gid=8)
    things["srv/certain link"] = Node(kind=tarfile.SYMTYPE, target="certain")
    return things


@dataclass(frozen=True, kw_only=True, slots=True)
class Maker:
    """Packs small images below `out`; `bases` are by architecture."""

    bases: dict[str, Base]
    out: Path
    work: Path
    tools: Tools
    _made: dict[str, int] = field(default_factory=dict)

    def make(self, small: Small) -> Path:
        """The folder of an image, as the main job leaves one that was not verified yet."""
        folder = self.out / small.identifier
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        layouts: dict[str, PlainLayout] = {}
        for name in FORMATS:
            layout = self._layout(small, name, folder)
            key = layout.digest
            if key not in layouts:
                layouts[key] = unpack(layout, self._fresh("plain"))
            self._pack(small, name, layout, layouts[key], folder)
        shutil.rmtree(self.work / "plain", ignore_errors=True)
        (folder / MANIFEST).write_text(json.dumps(_manifest(small, folder)))
        return folder

    def _fresh(self, name: str) -> Path:
        self._made[name] = self._made.get(name, 0) + 1
        place = self.work / "plain" / f"{name}-{self._made[name]}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.parent.chmod(0o755)
        return place

    def _layout(self, small: Small, name: str, folder: Path) -> Layout:
        base = self.bases[small.arch]
        place = folder / FILES["oci"] if name == "oci" else self._fresh(name)
        start_layout(place)
        blob_path(place, base.layer.digest).hardlink_to(base.blob)
        scripts = {
            f"{CHECKS}/{check.name}": Node(
                data=f"#!/bin/sh\n{check.text}\n".encode(), mode=check.mode
            )
            for check in small.checks
        }
        things = {**small.trees[name], **scripts}
        _, layer = layer_in({**_folders(things, base), **things}, place / "blobs/sha256")
        config = {
            "architecture": ARCHITECTURES[small.arch].oci,
            "os": "linux",
            "config": {
                "Env": [f"{key}={text}" for key, text in small.environments[name].items()],
                "WorkingDir": small.directory,
            },
            "rootfs": {"type": "layers", "diff_ids": [base.layer.diff_id, layer.diff_id]},
        }
        finish_layout(place, config, [base.layer, layer])
        return read_layout(place)

    def _pack(
        self, small: Small, name: str, layout: Layout, plain: PlainLayout, folder: Path
    ) -> None:
        target = folder / FILES[name]
        if name == "charliecloud":
            charliecloud.pack(plain, flatten.flattened(plain.layout), layout, target)
        elif name == "sif":
            made = self.work / "sif" / FILES["sif"]  # the ordinary user writes there
            apptainer.pack(
                plain.layout.path,
                made,
                singularity_sections("a small image", has_checks=bool(small.checks)),
                arch=small.arch,
                tools=self.tools,
                log=self.work / "apptainer.log",
            )
            shutil.move(made, target)


def maker_in(work: Path, images: Mapping[str, Path], tools: Tools) -> Maker:
    """A maker that works in a folder; `images` are what bases are cut out of, by architecture."""
    work.chmod(0o755)
    (work / "sif").mkdir()
    if tools.ordinary_user:
        shutil.chown(work / "sif", tools.ordinary_user)
    return Maker(bases=Bases(images, work), out=work / "out", work=work, tools=tools)


def _manifest(small: Small, folder: Path) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "image": small.identifier,
        "cell": {
            "recipe": "tiny",
            "recipe_version": "1.0",
            "base": "scratch",
            "cuda": "none",
            "mpi": "none",
            "arch": small.arch,
        },
        "content_key": "",
        "engine": "buildah",
        "artifacts": {name: artifact_of(folder, name) for name in FORMATS},
        "checks": {},
        "outcome": "built",
        "evidence": [],
        "in_image_checks": [
            {
                "name": one.name,
                "script": f"/{CHECKS}/{one.name}",
                "needs": list(one.needs),
                "timeout_s": one.timeout_s,
            }
            for one in small.checks
        ],
    }


def artifact_of(folder: Path, name: str) -> dict[str, object]:
    """An artifact as manifests hold it."""
    path = folder / FILES[name]
    digest = read_layout(path).digest if name == "oci" else digest_of_file(path)
    return {"format": name, "path": path.name, "digest": digest, "size": size_of(path)}
