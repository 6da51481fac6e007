"""A small image in three formats, written without an engine: for tests of what verification reads.

Each part of it can be another than in a sound image: a format's tree, its metadata, the structure
of its files. It is judged as `verify` judges `formats-equal` and `harness`.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import struct
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.artifacts.manifests import FOLDER as HARNESS
from builder.artifacts.oci import LayerBlob, blob_path, finish_layout, packing_of, start_layout
from builder.artifacts.sif import JSON, PARTITION
from builder.build.engines import Tools, apptainer
from builder.model import PASSED
from builder.model.digests import digest_of
from builder.model.manifest import InImageCheck
from builder.model.planned import RUNSCRIPT, TEST, environment_text
from builder.system.home import Home
from builder.system.process import Processes
from builder.verify.formats import compared, read_formats
from builder.verify.targets import ProofTarget, altered_harness

FILES = {"oci": "image.oci", "sif": "image.sif", "charliecloud": "image.tar.gz"}
ENV = ".singularity.d/env"
SQUASHFS, PRIMARY = 1, 2
_START = 65536  # of the first object of a SIF
Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A file, folder, link or device. `attributes` are extended ones, `user.*` for example."""

    kind: bytes = tarfile.REGTYPE
    data: bytes = b""
    target: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)

    def member(self, path: str) -> tarfile.TarInfo:
        member = tarfile.TarInfo(path)
        member.type, member.linkname, member.mode = self.kind, self.target, self.mode
        member.uid, member.gid, member.size = self.uid, self.gid, len(self.data)
        member.mtime = self.mtime
        member.pax_headers = {f"SCHILY.xattr.{name}": one for name, one in self.attributes.items()}
        return member


FOLDER = Node(kind=tarfile.DIRTYPE, mode=0o755)
Tree = Mapping[str, Node]


@dataclass(frozen=True, kw_only=True, slots=True)
class SifPart:
    """An object of a SIF; `content` None is the image's own file system."""

    kind: int = PARTITION
    name: str = ""
    content: bytes | None = None
    system: int = SQUASHFS
    role: int = PRIMARY
    arch: bytes = b"02"
    past_end: int = 0


def tar_of(tree: Tree, *, prefix: str = "", form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of a tree, in its order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, errors="surrogateescape") as archive:
        for path, node in tree.items():
            archive.addfile(node.member(prefix + path), io.BytesIO(node.data))
    return buffer.getvalue()


def write_sif(file: Path, parts: Sequence[SifPart], tree: bytes = b"") -> Path:
    """Write a SIF with objects; `tree` is the content of those without one."""
    arch = next((part.arch for part in parts if part.kind == PARTITION), b"02")
    table, body = b"", b""
    for number, part in enumerate(parts, start=1):
        content = tree if part.content is None else part.content
        place = (_START + len(body), len(content) + part.past_end, len(content), 0, 0, 0, 0)
        extra = struct.pack("<ii3s", part.system, part.role, part.arch)
        fixed = (part.kind, True, number, 1, 0, *place, part.name.encode())
        extra = extra if part.kind == PARTITION else b""
        table += struct.pack("<i?IIIqqqqqqq128s384s", *fixed, extra)
        body += content
    head = struct.pack(
        "<32s10s3s3s16sqqqqqqqq",
        *(b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", arch, b"\0" * 16),
        *(0, 0, 0, len(parts) or 1, 128, len(table), _START, len(body)),
    )
    file.write_bytes((head + table).ljust(_START, b"\0") + body)
    return file


def sif_scripts(variables: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    """The files below `.singularity.d` of a SIF, as Apptainer writes them."""
    own = apptainer.spoiled(variables)
    others = {name: text for name, text in variables.items() if name not in own}
    return {
        ".singularity.d/runscript": f"#!/bin/sh\n\n    {RUNSCRIPT}\n",
        ".singularity.d/test": f"#!/bin/sh\n\n    {TEST}\n",
        ".singularity.d/labels.json": json.dumps({**labels, "org.label-schema.usage": "x"}),
        f"{ENV}/94-appsbase.sh": "",
        f"{ENV}/10-docker2singularity.sh": "\n".join(
            ["#!/bin/sh", *apptainer.environment_script(others)]
        ),
        f"{ENV}/90-environment.sh": "\n".join(["#!/bin/sh", "", *apptainer.variable_commands(own)]),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Formats:
    """An image in three formats: what each of them holds, and what is done to it at last.

    `layers` are those of the OCI layout. `settings` are a SIF's copy of the configuration,
    `inspected` what `apptainer inspect` shows; None is what a sound image has. `sif_more` are paths
    beside its scripts. `pack` makes a blob
    of a layer's tar; `after` spoils the folder.
    """

    layers: tuple[Tree, ...]
    sif: Tree
    charliecloud: Tree
    config: Mapping[str, Any]
    scripts: Mapping[str, str]
    settings: Settings
    tarball_variables: str
    inspected: Mapping[str, str] | None = None
    parts: tuple[SifPart, ...] = (SifPart(),)
    pack: Callable[[bytes], bytes] = lambda tar: gzip.compress(tar, 1, mtime=0)
    form: int = tarfile.PAX_FORMAT
    prefix: str = ""
    sif_options: tuple[str, ...] = ()
    sif_more: Tree = field(default_factory=dict)
    harness: Mapping[str, str] = field(default_factory=dict)
    after: Callable[[Path], object] | None = None

    def write(self, folder: Path) -> dict[str, Path]:
        """Write all formats; the files by format."""
        self._write_layout(folder / FILES["oci"])
        self._write_sif(folder / FILES["sif"])
        self._write_tarball(folder / FILES["charliecloud"])
        if self.after:
            self.after(folder)
        return {name: folder / file for name, file in FILES.items()}

    def faults(self, folder: Path) -> list[str]:
        """What verification says of its formats and of its harness; nothing if they are sound."""
        files = self.write(folder)
        tools = Tools(processes=Processes(), home=Home(path=folder / "home"))
        image = read_formats(files, arch="x86_64", work=folder, tools=tools)
        outcome = compared(image, has_checks=True)
        check = InImageCheck(
            name="mpi", script="/opt/build-images/checks/mpi", needs=(), timeout_s=1
        )
        target = ProofTarget(
            identifier="small",
            arch="x86_64",
            environment={},
            checks=(check,) if self.harness else (),
            harness={path.removeprefix(HARNESS): digest for path, digest in self.harness.items()},
        )
        outcomes = [outcome, *altered_harness(target, image.trees)]
        return [f"{one.reason}\n{one.output}" for one in outcomes if one.outcome != PASSED]

    def _write_layout(self, path: Path) -> None:
        start_layout(path)
        layers = []
        for tree in self.layers:
            tar = tar_of(tree, prefix=self.prefix, form=self.form)
            blob = self.pack(tar)
            layer = LayerBlob(diff_id=digest_of(tar), digest=digest_of(blob), size=len(blob))
            blob_path(path, layer.digest).write_bytes(blob)
            layers.append(layer)
        rootfs = {"type": "layers", "diff_ids": [one.diff_id for one in layers]}
        finish_layout(path, {**self.config, "rootfs": rootfs}, layers)
        kinds = {one.digest: packing_of(blob_path(path, one.digest)) for one in layers}
        edit_manifest(path, lambda manifest: _name_kinds(manifest, kinds))

    def _write_sif(self, path: Path) -> None:
        scripts = {name: Node(data=text.encode()) for name, text in self.scripts.items()}
        folders = {f".singularity.d/{name}": FOLDER for name in ("env", "libs", "actions")}
        folders = {".singularity.d": FOLDER, **folders}
        squashfs = path.with_suffix(".squashfs.made")
        command = ["tar2sqfs", "--quiet", "--force", *self.sif_options, str(squashfs)]
        tar = tar_of({**self.sif, **folders, **scripts, **self.sif_more})
        subprocess.run(command, input=tar, check=True)
        shown = self.inspected if self.inspected is not None else self.scripts
        objects = {
            "oci-config.json": json.dumps(self.settings),
            "inspect-metadata.json": json.dumps({"data": {"attributes": _attributes(shown)}}),
        }
        described = [
            SifPart(kind=JSON, name=name, content=text.encode()) for name, text in objects.items()
        ]
        write_sif(path, [*self.parts, *described], squashfs.read_bytes())
        squashfs.unlink()

    def _write_tarball(self, path: Path) -> None:
        variables = {"ch": FOLDER, "ch/environment": Node(data=self.tarball_variables.encode())}
        tar = tar_of({**self.charliecloud, **variables}, prefix=self.prefix, form=self.form)
        path.write_bytes(gzip.compress(tar, 1, mtime=0))

    # ---- Changes ----

    def in_format(self, name: str, tree: Tree) -> Formats:
        """The same image with another tree in one format."""
        if name == "oci":
            return dataclasses.replace(self, layers=(tree,))
        if name == "sif":
            return dataclasses.replace(self, sif=tree)
        return dataclasses.replace(self, charliecloud=tree)

    def everywhere(self, tree: Tree) -> Formats:
        """The same image with another tree in all formats."""
        return dataclasses.replace(self, layers=(tree,), sif=tree, charliecloud=tree)


def sound(tree: Tree, **changes: Any) -> Formats:
    """An image with a tree, whose formats say the same. `changes` are settings of its config."""
    settings = {key: text for key, text in {**SETTINGS, **changes}.items() if text is not None}
    pairs = [one.partition("=") for one in settings.get("Env", [])]
    variables = {name: text for name, _, text in pairs}
    labels = settings.get("Labels") or {}
    scripts = sif_scripts(variables, labels)
    if settings.get("Entrypoint") or settings.get("Cmd") not in (None, [], ["/bin/bash"]):
        scripts[".singularity.d/runscript"] = '#!/bin/sh\nexec /opt/build-images/run "$@"\n'
    return Formats(
        layers=(tree,),
        sif=tree,
        charliecloud=tree,
        config={"architecture": "amd64", "os": "linux", "config": settings},
        scripts=scripts,
        settings=settings,
        tarball_variables=environment_text(variables),
    )


def edit_manifest(layout: Path, change: Callable[[Any], object]) -> None:
    """Change the manifest of a layout, and name it in the index."""
    index = json.loads((layout / "index.json").read_text())
    [descriptor] = index["manifests"]
    blob = blob_path(layout, descriptor["digest"])
    manifest = json.loads(blob.read_bytes())
    change(manifest)
    data = json.dumps(manifest).encode()
    blob.unlink()
    descriptor.update(digest=digest_of(data), size=len(data))
    blob_path(layout, descriptor["digest"]).write_bytes(data)
    (layout / "index.json").write_text(json.dumps(index))


def edit_config(layout: Path, change: Callable[[Any], object]) -> None:
    """Change the configuration of a layout, and name it in the manifest."""

    def replace(manifest: Any) -> None:
        blob = blob_path(layout, manifest["config"]["digest"])
        config = json.loads(blob.read_bytes())
        change(config)
        data = json.dumps(config).encode()
        manifest["config"].update(digest=digest_of(data), size=len(data))
        blob_path(layout, manifest["config"]["digest"]).write_bytes(data)

    edit_manifest(layout, replace)


def harness_digests(tree: Tree) -> dict[str, str]:
    """The digests of a tree's harness, as the builder notes them."""
    return {
        path: hashlib.sha256(node.data).hexdigest()
        for path, node in tree.items()
        if path.startswith("opt/build-images/") and node.kind == tarfile.REGTYPE
    }


def _name_kinds(manifest: Any, kinds: Mapping[str, str]) -> None:
    for layer in manifest["layers"]:
        layer["mediaType"] = kinds[layer["digest"]]


def _attributes(files: Mapping[str, str]) -> dict[str, Any]:
    return {
        "labels": json.loads(files[".singularity.d/labels.json"]),
        "runscript": files[".singularity.d/runscript"],
        "test": files[".singularity.d/test"],
        "environment": {f"/{path}": text for path, text in files.items() if path.startswith(ENV)},
    }


CONTRACT = {"schema": "s/v1", "cpu": {"target": "generic"}, "list": ["a", "b"]}
LABELS = {
    "title": "x",
    "build-images.host.schema": "s/v1",
    "build-images.host.cpu.target": "generic",
    "build-images.host.list": "a b",
}
SETTINGS: Settings = {
    "Env": ["PATH=/usr/bin:/bin", "MODE=a b", 'ODD=a"b`c`\td', "java.home=/opt/java"],
    "Cmd": ["/bin/bash"],
    "Labels": LABELS,
    "WorkingDir": "/srv",
}
_HARNESS = {
    "run-checks": b"#!/bin/sh\nfor check in checks/*; do sh $check; done\n",
    "checks/mpi": b"#!/bin/sh\nsh ../src/quiet.sh mpirun -n 5 ../bin/mpi\n",
    "src/quiet.sh": b'#!/bin/sh\n[ -z "$("$@" 2>&1 >/dev/null)" ]\n',
    "src/mpi.c": b"int main(void) { return 0; }\n",
    "bin/mpi": b"\x7fELF and the rest",
}


def base_tree() -> dict[str, Node]:
    """A tree with one of each kind of path, the harness and the host contract."""
    tree = dict.fromkeys(("etc", "srv", "srv/empty", "usr", "usr/bin", "opt"), FOLDER)
    tree |= dict.fromkeys(("opt/build-images", "dev", "proc", "tmp"), FOLDER)
    tree |= {f"opt/build-images/{name}": FOLDER for name in ("checks", "src", "bin")}
    tree |= {
        f"opt/build-images/{path}": Node(data=data, mode=0o755) for path, data in _HARNESS.items()
    }
    contract = json.dumps(CONTRACT).encode()
    tree["opt/build-images/host-contract.json"] = Node(data=contract)
    return tree | {
        "etc/passwd": Node(data=b"root:x:0:0::/root:/bin/sh\n"),
        "etc/shadow": Node(data=b"root:*\n", mode=0o640, gid=42),
        "srv/data": Node(data=b"0123456789" * 20),
        "srv/none": Node(),
        "srv/link": Node(kind=tarfile.SYMTYPE, target="data", mode=0o777),
        "srv/noted": Node(data=b"n", attributes={"user.note": "x"}),
        "srv/pipe": Node(kind=tarfile.FIFOTYPE),
        "srv/shared": Node(kind=tarfile.DIRTYPE, mode=0o2775, gid=50),
        "srv/drop": Node(kind=tarfile.DIRTYPE, mode=0o1777),
        "usr/bin/su": Node(data=b"\x7fELF su", mode=0o4755),
        "usr/bin/ping": Node(
            data=b"\x7fELF p", mode=0o755, attributes={"security.capability": "\x01\x00\x00\x02"}
        ),
    }
