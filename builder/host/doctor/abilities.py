"""The abilities of a machine, and what it lacks to build and verify images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from builder.host.doctor.diagnosis import Ability, Diagnosis, Item
from builder.host.doctor.emulation import key_of
from builder.host.doctor.folders import HOME, STORE, TEMPORARY, folder_problem, free_bytes, standing
from builder.model.errors import MissingPrerequisite

FORMATS = {"oci": "OCI layouts", "sif": "SIF images", "charliecloud": "Charliecloud tarballs"}
_ENGINES = {
    "buildah": ("buildah", "policy", STORE),
    "docker": ("docker", "skopeo", "policy"),
}
_WORK = (HOME, TEMPORARY)
_BASES = ("mmdebstrap", "keyring")
_PACK = {
    "oci": (),
    "sif": ("apptainer", "mksquashfs", "user", "reach", "userns", "subuid", "subgid"),
    "charliecloud": ("pigz",),
}
_RUN = {
    "oci": ("buildah", "policy", STORE),
    "sif": ("apptainer", "sqfs2tar", "user", "reach", "userns"),
    "charliecloud": ("ch-run", "pigz", "user", "reach", "userns"),
}
_ROOTLESS = ("userns", "newuidmap", "subuid", "subgid")
_RUNNERS = {
    "buildah": _RUN["oci"],
    "podman": ("podman", "policy"),
    "docker": ("docker", "skopeo", "policy"),
    "apptainer": _RUN["sif"],
    "charliecloud": _RUN["charliecloud"],
}
_AS_ROOT_INSIDE = frozenset({"buildah", "podman"})  # containers with a range of user ids


def abilities_of(
    items: Mapping[str, Item], *, archs: Sequence[str], as_root: bool
) -> tuple[Ability, ...]:
    """Return all abilities; those to build are for the engine of this machine."""
    engine = "docker" if items["docker"].ok and not items["buildah"].ok else "buildah"
    build = _build(engine, as_root)
    needs: dict[str, Sequence[str]] = {
        f"build {arch} images": (*build, key_of(arch)) for arch in archs
    }
    for name, title in FORMATS.items():
        needs[f"pack {title}"] = build if name == "oci" else (*_PACK[name], *_WORK)
    for name, title in FORMATS.items():
        for arch in archs:
            needs[f"run and verify {title} for {arch}"] = (*_RUN[name], key_of(arch), *_WORK)
    needs["GPU checks"] = ("gpu",)
    return tuple(
        Ability(title=title, missing=_missing(items, keys)) for title, keys in needs.items()
    )


def require(
    diagnosis: Diagnosis,
    *,
    archs: Sequence[str],
    formats: Iterable[str],
    engine: str,
    home: Path,
    out: Path,
    images: int = 1,
    bases: bool = True,
    lent: Sequence[str] = (),
) -> None:
    """Raise `MissingPrerequisite` with all that this machine lacks to build and verify images.

    `home` and `out` need space for so many `images` at a time. `bases` is true if a base must be
    bootstrapped: a base from a registry needs no mmdebstrap. `lent` are the architectures whose
    build steps run native tools, if the kernel's handler was registered by set-up.
    """
    needs = [*_build(engine, diagnosis.user == "root"), *map(key_of, archs)]
    needs = [key for key in needs if bases or key not in _BASES]
    if any(diagnosis.items[f"native:{arch}"].ok for arch in lent):
        needs.append("patchelf")
    for name in formats:
        needs += [*_PACK.get(name, (name,)), *_RUN.get(name, ())]
    lacking = [
        f"  {item.title}: {item.text}\n      {item.remedy}"
        for item in _missing(diagnosis.items, needs)
    ]
    folders = [(home, "BUILD_IMAGES_HOME")] if diagnosis.items[HOME].ok else []
    need = int(str(diagnosis.items[STORE].data["needed_bytes"]))
    lacking += _unusable([*folders, (out, "--output")], need * images)
    if lacking:
        count = "1 thing" if len(lacking) == 1 else f"{len(lacking)} things"
        lines = [f"this machine lacks {count} for this run; nothing was built.", *lacking]
        raise MissingPrerequisite(
            "\n".join(lines), hint="'build-images doctor' shows all that this machine has"
        )


def lacking_for(diagnosis: Diagnosis, runner: str, arch: str) -> tuple[Item, ...]:
    """Return all items that this machine lacks to run images of an architecture by a runner."""
    with_ids = runner in _AS_ROOT_INSIDE and diagnosis.user != "root"
    rootless = _ROOTLESS if with_ids else ()
    return _missing(diagnosis.items, (*rootless, *_RUNNERS[runner], key_of(arch)))


def _build(engine: str, as_root: bool) -> tuple[str, ...]:
    rootless = () if as_root else _ROOTLESS
    return (*_ENGINES.get(engine, (engine,)), *_BASES, *rootless, *_WORK)


def _missing(items: Mapping[str, Item], keys: Iterable[str]) -> tuple[Item, ...]:
    unknown = ("not known to this program", "choose another one")
    known = [
        items.get(key) or Item(key, "", key.removeprefix(key_of("")), *unknown)
        for key in dict.fromkeys(keys)
    ]
    return tuple(item for item in known if not item.ok)


def _unusable(folders: Iterable[tuple[Path, str]], need: int) -> list[str]:
    """Return the folders that are not writable or have too little space, one for each disk."""
    problems, disks = [], set()
    for folder, option in folders:
        if problem := folder_problem(folder):
            problems.append(f"  {folder}: {problem}\n      choose another one with {option}")
        disk, free = standing(folder).stat().st_dev, free_bytes(folder)
        if free < need and disk not in disks:
            text = f"{free / 1e9:.1f} GB free, but {need / 1e9:.1f} GB may be needed"
            remedy = f"make room, or choose another one with {option}"
            problems.append(f"  {folder}: {text}\n      {remedy}")
        disks.add(disk)
    return problems
