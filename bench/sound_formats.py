"""Sound images whose formats have odd and legal properties: none of them may be accused."""

from __future__ import annotations

import dataclasses
import gzip
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from typing import Any

from campaign import Case
from made_formats import (
    FILES,
    FOLDER,
    LABELS,
    SETTINGS,
    Formats,
    Node,
    SifPart,
    base_tree,
    edit_manifest,
    harness_digests,
    sound,
)

TREE = base_tree()
SOUND = sound(TREE)
_SIGNATURE, _GENERIC = 0x4005, 0x4007
_LINK, _HARD, _CHARACTER = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE


def cases() -> list[Case]:
    """All sound images of this kind."""
    images = {**_trees(), **_layers(), **_settings(), **_files()}
    return [
        Case(family="formats", name=name, faults=image.faults) for name, image in images.items()
    ]


def _trees() -> dict[str, Formats]:
    names = {
        "spaces": "srv/a b ",
        "a quote": "srv/x'y\"z",
        "a newline": "srv/a\nsif formats-equal passed",
        "a tab and a backslash": "srv/a\t\\b",
        "accents": "srv/été",
        "an accent that is composed": "srv/e\u0301",
        "no UTF-8": "srv/\udcff\udcfe",
        "a leading dash": "srv/-rf",
        "three dots": "srv/...",
        "255 bytes": "srv/" + "n" * 255,
        "a long path": "srv/" + "/".join(["f" * 90] * 4),
        "a whiteout's prefix within": "srv/a.wh.b",
        "capitals beside small ones": "srv/DATA",
        "the name of a folder that is left out": "srv/proc",
    }
    images = {f"a name with {name}": _with(_folders(path)) for name, path in names.items()}
    more: dict[str, Mapping[str, Node]] = {
        "a link to itself": {"srv/self": Node(kind=_LINK, target="self")},
        "a link that leads nowhere": {"srv/nowhere": Node(kind=_LINK, target="/none")},
        "a link out of the root": {"srv/out": Node(kind=_LINK, target="../../../etc")},
        "a link to a folder": {"lib": Node(kind=_LINK, target="usr/bin")},
        "a long link": {"srv/far": Node(kind=_LINK, target="x/" * 1000 + "y")},
        "no permission": {"srv/closed": Node(data=b"x", mode=0)},
        "all permissions": {"srv/open": Node(data=b"x", mode=0o7777)},
        "a large owner": {"srv/theirs": Node(data=b"x", uid=2_000_000, gid=3_000_000)},
        "nobody": {"srv/nobodys": Node(data=b"x", uid=65534, gid=65534)},
        "a file of zeros": {"srv/zeros": Node(data=bytes(3_000_000))},
        "an attribute with bytes": {"srv/noted": Node(attributes={"user.note": 'a"=\n'})},
        "an SELinux label": {"srv/data": Node(attributes={"security.selinux": "x:y:z"})},
        "a device": {"srv/null": Node(kind=_CHARACTER, mode=0o666)},
        "a hard link": {"srv/same": Node(kind=_HARD, target="srv/data")},
        "a folder without permission": {"srv/shut": dataclasses.replace(FOLDER, mode=0)},
        "many files": {f"srv/empty/{number}": Node(data=b"%d" % number) for number in range(3000)},
    }
    images |= {name: _with(tree) for name, tree in more.items()}
    for name in ("sif", "charliecloud"):
        other = {**TREE, "dev/x": Node(), "tmp/x": Node(), "etc/hosts": Node(data=b"x")}
        images[f"what is left out differs in {name}"] = SOUND.in_format(name, other)
    as_root = {path: dataclasses.replace(node, uid=0, gid=0) for path, node in TREE.items()}
    as_root["usr/bin/ping"] = dataclasses.replace(TREE["usr/bin/ping"], attributes={})
    images["every path in a SIF is root's"] = SOUND.in_format("sif", as_root)
    images["its harness is the builder's"] = dataclasses.replace(
        SOUND, harness=harness_digests(TREE)
    )
    images["no harness"] = sound(
        {path: node for path, node in TREE.items() if "build-images" not in path},
        Labels={"title": "x"},
    )
    return images


def _with(more: Mapping[str, Node]) -> Formats:
    return SOUND.everywhere({**TREE, **more})


def _folders(path: str) -> dict[str, Node]:
    """A file, and the folders above it."""
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    return {**{one: FOLDER for one in above if one not in TREE}, path: Node(data=b"x")}


def _zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-q", "-c"], input=data, capture_output=True, check=True).stdout


def _layers() -> dict[str, Formats]:
    half = len(TREE) // 2
    lower, upper = dict(list(TREE.items())[:half]), dict(list(TREE.items())[half:])
    gone = {"srv/gone": FOLDER, "srv/gone/x": Node(data=b"x")}
    opaque = {"srv/empty/x": Node(data=b"x")}
    layers: dict[str, tuple[Mapping[str, Node], ...]] = {
        "two layers": (lower, upper),
        "a layer for each path": tuple({path: node} for path, node in TREE.items()),
        "an empty layer": (TREE, {}),
        "the same layer twice": (TREE, TREE),
        "a file written again": ({**TREE, "srv/data": Node(data=b"older")}, TREE),
        "a whiteout": ({**TREE, **gone}, {"srv/.wh.gone": Node()}),
        "a whiteout of what is not there": (TREE, {"srv/.wh.never": Node()}),
        "an opaque folder": (
            {**TREE, **opaque},
            {"srv/empty": FOLDER, "srv/empty/.wh..wh..opq": Node()},
        ),
        "a folder that was a file": ({**TREE, "srv/empty": Node(data=b"x")}, TREE),
        "a mode that was changed": (
            {**TREE, "usr/bin/su": dataclasses.replace(TREE["usr/bin/su"], mode=0o755)},
            {"usr/bin/su": TREE["usr/bin/su"]},
        ),
    }
    images = {
        name: dataclasses.replace(SOUND, layers=trees, form=tarfile.PAX_FORMAT)
        for name, trees in layers.items()
    }
    packed: dict[str, Callable[[bytes], bytes]] = {
        "plain": lambda tar: tar,
        "Zstandard": _zstd,
        "gzip in two members": lambda tar: gzip.compress(tar[:512]) + gzip.compress(tar[512:]),
        "gzip of the highest level": lambda tar: gzip.compress(tar, 9),
        "padded to 1 MiB": lambda tar: gzip.compress(tar, 1),
    }
    for name, pack in packed.items():
        images[f"layers in {name}"] = dataclasses.replace(SOUND, pack=pack)
    plain = {path: dataclasses.replace(node, attributes={}) for path, node in TREE.items()}
    for name, form in (("GNU's", tarfile.GNU_FORMAT), ("the old", tarfile.USTAR_FORMAT)):
        images[f"tars in {name} form"] = dataclasses.replace(SOUND.everywhere(plain), form=form)
    for prefix in ("./", "/"):
        images[f"names that begin with {prefix}"] = dataclasses.replace(SOUND, prefix=prefix)
    return images


def _settings() -> dict[str, Formats]:
    odd: dict[str, dict[str, Any]] = {
        "no labels": {"Labels": None},
        "no working directory": {"WorkingDir": None},
        "no command": {"Cmd": None},
        "an entry point": {"Entrypoint": ["/opt/build-images/run"], "Cmd": None},
        "a user": {"User": "1000:1000"},
        "volumes and ports": {"Volumes": {"/data": {}}, "ExposedPorts": {"80/tcp": {}}},
        "a stop signal": {"StopSignal": "SIGTERM"},
        "a label with quotes and a newline": {"Labels": {**LABELS, "x": "a\"b'c\nd"}},
        "a label in another script": {"Labels": {**LABELS, "x": "日本語"}},
        "an empty label": {"Labels": {**LABELS, "x": ""}},
        "a label of label-schema": {"Labels": {**LABELS, "org.label-schema.name": "y"}},
    }
    variables = {
        "an empty value": "X=",
        "equals signs": "X=a=b=c",
        "a quote alone": 'X="',
        "single quotes around": "X='a b'",
        "a backtick": "X=`",
        "a backslash at its end": "X=a\\",
        "a tab": "X=a\tb",
        "a dot in its name": "java.home=/x",
        "a dash in its name": "a-b=1",
        "HOME": "HOME=/root",
        "spaces at its ends": "X= a ",
        "another script": "X=été",
        "100 kB": "X=" + "x" * 100_000,
        "a hash": "X=#a",
        "a glob": "X=*",
    }
    odd |= {
        f"a variable with {name}": {"Env": [*SETTINGS["Env"], text]}
        for name, text in variables.items()
    }
    odd["no variables"] = {"Env": []}
    bare = {path: node for path, node in TREE.items() if "host-contract" not in path}
    return {
        name: sound(bare if "Labels" in changes and not changes["Labels"] else TREE, **changes)
        for name, changes in odd.items()
    }


def _files() -> dict[str, Formats]:
    """Odd structures of layout and SIF."""
    signed = SifPart(kind=_SIGNATURE, name="part-signature", content=b"-----BEGIN PGP")
    note = SifPart(kind=_GENERIC, name="note", content=b"anything")
    images = {
        "a SIF with a signature": dataclasses.replace(SOUND, parts=(SifPart(), signed)),
        "a SIF with an object before": dataclasses.replace(SOUND, parts=(note, SifPart())),
    }
    for packing in ("gzip", "xz", "lz4", "zstd"):
        images[f"a SIF in {packing}"] = dataclasses.replace(
            SOUND, sif_options=("--compressor", packing)
        )
    images["a SIF in blocks of 4 KiB"] = dataclasses.replace(
        SOUND, sif_options=("--block-size", "4096")
    )

    def annotate(manifest: Any) -> None:
        manifest["annotations"] = {"title": "x", "org.opencontainers.image.created": "2026"}
        manifest["layers"][0]["annotations"] = {"note": "x"}

    images["annotations"] = dataclasses.replace(
        SOUND, after=lambda folder: edit_manifest(folder / FILES["oci"], annotate)
    )
    images["another file beside the layout"] = dataclasses.replace(
        SOUND, after=lambda folder: (folder / FILES["oci"] / "note").write_text("x")
    )
    history = {**SOUND.config, "history": [{"created_by": "x", "empty_layer": True}], "author": "y"}
    images["a history with empty layers"] = dataclasses.replace(SOUND, config=history)
    return images
