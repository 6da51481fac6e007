"""Build an image again in isolation, and compare it with the first build."""

from __future__ import annotations

import dataclasses
import json
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from builder.artifacts import oci
from builder.artifacts.compare import Difference, layout_differences, tarball_difference
from builder.build.at_work import store_in_use
from builder.build.base_store import StoredBase
from builder.build.engines import ENGINES, Tools
from builder.build.inputs import fetch_sources
from builder.build.packing import ImagePacker
from builder.build.run import BuildSettings, Run, Timer
from builder.build.stages import imported_bases, on_images
from builder.build.workspace import workspace, write_spec
from builder.compile.spec import base_archive
from builder.model import Artifact, Spec
from builder.model.errors import BadInput, StepFailed, counted, first_of
from builder.model.manifest import FILES, SBOM, Manifest, packages_of
from builder.system.files import remove_tree
from builder.system.home import Home
from builder.system.orphans import MARK, living
from builder.system.terminal import Progress
from builder.verify.finished_images import whole_digest
from builder.verify.preparation import prepare

_SHOWN = 5  # packages
COMPARED = ("oci", "charliecloud")  # a SIF holds the time at which it was made


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The result of a second build: digests by format, and the differences."""

    image: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    differences: Sequence[Difference]
    packages: Sequence[str]
    duration_s: float

    @property
    def is_same(self) -> bool:
        """True if every artifact is the same, byte for byte."""
        return self.before == self.after

    def as_json(self) -> str:
        """Return the comparison as JSON."""
        digests = {
            name: {"before": digest, "after": self.after[name]}
            for name, digest in self.before.items()
        }
        return json.dumps(
            {
                "image": self.image,
                "reproduced": self.is_same,
                "artifacts": digests,
                "differences": [dataclasses.asdict(change) for change in self.differences],
                "packages": list(self.packages),
                "duration_s": self.duration_s,
            },
            indent=1,
        )

    def as_text(self) -> str:
        """Return the outcome, with a line for each format and each difference."""
        mark, end = ("✓", "the same") if self.is_same else ("✗", "it differs")
        lines = [f"{mark} {self.image}  built again in {self.duration_s:.0f} s: {end}"]
        for name, digest in self.before.items():
            rebuilt = self.after[name]
            lines.append(
                f"    {name:12} {rebuilt}" + ("" if rebuilt == digest else f", not {digest}")
            )
        lines += [f"  {difference}" for difference in self.differences]
        if packages := self.packages:
            text = first_of(packages, _SHOWN, "; ")
            lines.append(f"  {counted(len(packages), 'package')} of another version: {text}")
        return "\n".join(lines)


def build_again(
    folder: Path, manifest: Manifest, spec: Spec, settings: BuildSettings, progress: Progress
) -> Comparison:
    """Build an image again from the same inputs, and compare the two.

    `settings` decide whether native tools and the network are used; formats, engine and epoch are
    the manifest's.
    """
    start = time.monotonic()
    base = _base(folder, manifest, spec)
    before = {name: manifest.artifacts[name].digest for name in _formats(manifest)}
    for name, digest in before.items():
        _check(folder / FILES[name], digest)
    home = Home.of_environment()
    with (
        store_in_use(home, settings.project, progress.say),
        _scratch(settings, progress, spec, manifest) as run,
    ):
        bases = (base,) if base else imported_bases(spec.image, home)
        artifacts, bill = _built(run, spec, bases)
        after = {name: artifact.digest for name, artifact in artifacts.items()}
        paths = {name: artifact.path for name, artifact in artifacts.items()}
        differences = [] if after == before else _differences(folder, paths, run.tools)
    return Comparison(
        image=manifest.image,
        before=before,
        after=after,
        differences=differences,
        packages=[] if after == before else _changed_packages(folder, bill),
        duration_s=round(time.monotonic() - start, 1),
    )


def _base(folder: Path, manifest: Manifest, spec: Spec) -> StoredBase | None:
    """Return the base stored beside the image; None if it comes from a registry."""
    image, known = spec.image, manifest.inputs.base
    if not image.is_bootstrapped:
        return None
    archive = folder / base_archive(image)
    try:
        with tarfile.open(archive) as tar:
            index = tar.extractfile("index.json")
            assert index is not None
            digest = json.load(index)["manifests"][0]["digest"]
    except (OSError, tarfile.TarError, KeyError, ValueError) as error:
        raise BadInput(f"{archive}: not the base of the image ({error})") from error
    if digest != known.digest:
        raise BadInput(f"{archive}: the base is {digest}, but the manifest says {known.digest}")
    return StoredBase(
        name=image.base_image,
        arch=image.cell.arch,
        key=known.key,
        archive=archive,
        digest=digest,
        made=known.created,
    )


def _formats(manifest: Manifest) -> tuple[str, ...]:
    return tuple(name for name in COMPARED if name in manifest.artifacts)


def _check(path: Path, expected: str) -> None:
    if not path.exists():
        raise BadInput(f"{path}: the manifest names this artifact, but it is missing")
    try:
        digest = whole_digest(path)
    except StepFailed as error:
        raise BadInput(f"{path}: it is damaged: {error.message}") from error
    if digest != expected:
        raise BadInput(f"{path}: its digest is {digest}, but the manifest says {expected}")


@contextmanager
def _scratch(
    settings: BuildSettings, progress: Progress, spec: Spec, manifest: Manifest
) -> Iterator[Run]:
    """Open a run with a home of its own, without layers or bases of earlier builds."""
    epoch, home = manifest.inputs.source_date_epoch, Home.of_environment()
    assert epoch is not None  # the command refuses manifests of versions without one
    settings = dataclasses.replace(
        settings,
        out=home.work,
        engine=manifest.engine,
        formats=_formats(manifest),
        cache=False,
        verify=False,
        epoch=epoch,
    )
    with ExitStack() as held:
        run = prepare(settings, progress, [spec.image], todo=1, held=held, bases=False)
        # If this process is killed, the next build ends the processes that it leaves.
        run.tools.processes.mark[MARK] = held.enter_context(living(home.builders))
        path = Path(tempfile.mkdtemp(dir=home.work, prefix="reproduce-"))
        scratch = Home(path=path, shared=home.shared)
        tools = dataclasses.replace(run.tools, home=scratch, journals=None)
        engine = ENGINES[manifest.engine](tools)
        try:
            for name in ("tools", "native"):
                (path / name).symlink_to(home.path / name)
            yield dataclasses.replace(run, settings=settings, tools=tools, engine=engine)
        finally:
            tools.processes.stop()
            engine.clean()
            remove_tree(path)


def _built(
    run: Run, spec: Spec, bases: Sequence[StoredBase]
) -> tuple[dict[str, Artifact], Mapping[str, object]]:
    """Return the artifacts of a build without any cache, and their bill of materials.

    `bases` are the local bases: the one that was made, or those from registries.
    """
    image, settings = spec.image, run.settings
    files = fetch_sources(settings.project, [spec], run.progress, offline=settings.offline)
    with workspace(run.tools.home, image, engine=run.engine.name, owner=None, fresh=True) as work:
        archive = bases[0].archive if image.is_bootstrapped else None
        text = on_images(spec.dockerfile, {base.name: base.tag for base in bases})
        own = dataclasses.replace(spec, dockerfile=text)
        write_spec(own, archive, work.context, base_archive(image), files)
        packer = ImagePacker(run=run, image=image, work=work, timer=Timer(), log=work.log)
        artifacts = packer.artifacts(*packer.layout(bases))
        return artifacts, work.remember("sbom", dict)


def _differences(folder: Path, paths: Mapping[str, Path], tools: Tools) -> list[Difference]:
    """Compare layer by layer; compare the tarball only if the layers are equal."""
    layouts = (oci.read_layout(folder / FILES["oci"]), oci.read_layout(paths["oci"]))
    if layouts[0].digest != layouts[1].digest:
        return layout_differences(*layouts)
    unpack = [tools.program("pigz"), "--decompress", "--stdout"]
    reading_from = tools.processes.reading_from
    with (
        reading_from([*unpack, folder / FILES["charliecloud"]]) as before,
        reading_from([*unpack, paths["charliecloud"]]) as after,
    ):
        return [tarball_difference(before, after)]


def _changed_packages(folder: Path, bill: Mapping[str, object]) -> list[str]:
    """Return the packages whose versions differ, as `name version, not version`."""
    try:
        noted = json.loads((folder / SBOM).read_text())
    except (OSError, ValueError):
        return []
    before, after = packages_of(noted), packages_of(bill)
    return [
        f"{name} {after.get(name, 'none')}, not {before.get(name, 'none')}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
