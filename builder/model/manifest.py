"""The manifest of an image, `out/IDENTIFIER/manifest.json`: its cell, inputs and results."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from builder import facts
from builder.model.cells import FORMATS, SKIPPED, Cell
from builder.model.exact_json import part
from builder.model.records import named, optional, read, unknown, write

MANIFEST = "manifest.json"
LOG = "build.log"
FILES = {"oci": "image.oci", "sif": "image.sif", "charliecloud": "image.tar.gz"}  # by format
SBOM = "sbom.cdx.json"
SCHEMA = "build-images/manifest/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedRanks:
    """Requests of a check to an MPI: `count` is 0 and `library` empty where that is not known."""

    count: int = 0
    library: str = ""

    @classmethod
    def of_command(cls, command: str, family: str, version: str) -> AskedRanks:
        """Return what a check's command asks for, by the launcher of the image's MPI."""
        mpi = facts.MPI_FAMILIES.get(family)
        if mpi is None:
            return cls()
        launch, library = mpi.launch.partition("{ranks}")[0], mpi.library.format(version=version)
        match = re.search(rf"{re.escape(launch)}(\d+)\b", command)
        return cls(
            count=int(match[1]) if match else 0, library=library if library in command else ""
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class InImageCheck:
    """A check as the image carries it: `script` is its path inside."""

    name: str
    script: str
    needs: tuple[str, ...]
    timeout_s: int
    asked: AskedRanks = field(default_factory=AskedRanks)  # earlier versions noted none

    @property
    def needs_gpu(self) -> bool:
        return "gpu" in self.needs


@dataclass(frozen=True, kw_only=True, slots=True)
class RecipeVersion:
    """A recipe of the image's chain."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedBase:
    """The base; `key`, `digest` and `created` are empty where it came from a registry."""

    name: str = ""
    image: str = ""
    key: str = ""
    digest: str = ""
    created: str = named("made", default="")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageInputs:
    """Inputs of an image; digests are `sha256:…`.

    `recipes` are its chain, `stages` content keys by the stages' targets, `specs` the digests of
    the specs' files, `sources` those of downloads by URL, `files` those of the files that declare
    the image, `program` that of this package, `programs` those of compiled checks. `native_tools`
    is the digest of those that were lent, or empty. `indices` are states of package indices, which
    `builder.model.package_indices` reads: what is none there is as if it were not noted.
    """

    recipes: tuple[RecipeVersion, ...] = ()
    base: UsedBase = field(default_factory=UsedBase)
    stages: Mapping[str, str] = field(default_factory=dict)
    specs: Mapping[str, str] | None = optional()
    sources: Mapping[str, str] | None = optional()
    compiler: str = ""
    version: str = named("build-images", default="")
    files: Mapping[str, str] = field(default_factory=dict)
    program: str = ""
    programs: Mapping[str, str] = field(default_factory=dict)
    source_date_epoch: int | None = None
    native_tools: str = ""
    indices: tuple[object, ...] = ()
    more: Mapping[str, object] = unknown()


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenImage:
    """Results of an image's verification; empty for one that is only built.

    `artifacts` have paths relative to the image's folder; so have the files of `evidence`. `checks`
    are outcomes by the names of runs. `emulated_runs` are the names of the runs that were,
    `emulated` is whether any was. `formats_equal` and `proven_on_gpu` are None where that was not
    tried, or is not asked.
    """

    image: str
    outcome: str
    artifacts: Mapping[str, Artifact]
    checks: Mapping[str, tuple[Outcome, ...]]
    in_image_checks: tuple[InImageCheck, ...]
    emulated: bool = False
    emulated_runs: tuple[str, ...] | None = optional()
    tools: Mapping[str, str] = field(default_factory=dict)
    tree_digest: str = ""
    formats_equal: bool | None = None
    proven_on_gpu: bool | None = None
    evidence: tuple[str, ...] = ()

    @property
    def gpu_checks(self) -> set[str]:
        """The names of its checks that need a GPU."""
        return {check.name for check in self.in_image_checks if check.needs_gpu}


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest(ProvenImage):
    """All data about an image. Fields that an earlier version did not write have their defaults.

    `digests` are those of the files that it binds, `launched` the outcomes of the ranks that a
    launcher started, by format. `measured` is a measurement. `builder` is a URI: the CI
    job or program that built the image.
    """

    cell: Cell
    content_key: str
    engine: str
    about: str = ""
    emulated_build: bool | None = optional()
    inputs: ImageInputs = field(default_factory=ImageInputs)
    sbom: str = SBOM
    packages: int = 0
    started: str = ""
    verified: str | None = optional()
    durations_s: Mapping[str, float] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    builder: str | None = optional()
    launched: Mapping[str, tuple[Outcome, ...]] | None = optional()
    measured: Mapping[str, object] | None = optional()
    schema: str = SCHEMA
    more: Mapping[str, object] = unknown()

    @property
    def was_built_emulated(self) -> bool:
        """True if the build was emulated; earlier versions had one value for build and checks."""
        return self.emulated if self.emulated_build is None else self.emulated_build

    @property
    def bound_names(self) -> list[str]:
        """The names of the files that it binds, relative to its folder."""
        return [self.sbom, *self.evidence]

    def with_proof(self, proven: ProvenImage) -> Manifest:
        """Return the manifest with new results in place of the earlier ones."""
        proof = {
            field.name: getattr(proven, field.name) for field in dataclasses.fields(ProvenImage)
        }
        return dataclasses.replace(self, **proof)

    def all_outcomes(self) -> dict[str, tuple[Outcome, ...]]:
        """Return the outcomes of the image's checks and of launched ranks, by run."""
        launched = self.launched or {}
        return {
            name: (*self.checks.get(name, ()), *launched.get(name, ()))
            for name in {**self.checks, **launched}
        }


def manifest_from(value: object) -> Manifest:
    """Return the manifest in parsed JSON; raises `ValueError` if it is malformed.

    It has an OCI layout, and neither artifacts nor runs of formats that are not known.
    """
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise ValueError(f"schema: expected {SCHEMA}")
    manifest = read(Manifest, value)
    if "oci" not in manifest.artifacts:
        raise ValueError("artifacts.oci: missing")
    _check_formats("artifacts", manifest.artifacts)
    _check_formats("checks", (name.partition("-")[0] for name in manifest.checks))  # oci-podman
    return manifest


def manifest_text(manifest: Manifest) -> str:
    return json.dumps(write(manifest), indent=1, sort_keys=True) + "\n"


def compared_values(
    manifest: Manifest, bill: Mapping[str, object], labels: Mapping[str, str] | None
) -> dict[str, Mapping[str, str]]:
    """Return what is compared of an image, by kind and name, beside its files.

    A kind of which nothing is known is left out: packages without a bill of materials, labels that
    are None. Sizes are in bytes.
    """
    return {
        **({"package": packages_of(bill)} if bill else {}),
        "size": {name: str(artifact.size) for name, artifact in manifest.artifacts.items()},
        "check": {
            f"{run}/{each.check}": each.outcome
            for run, outcomes in manifest.checks.items()
            for each in outcomes
        },
        **({} if labels is None else {"label": labels}),
    }


def packages_of(bill: Mapping[str, object]) -> dict[str, str]:
    """Return the versions of the packages in a bill of materials, by name.

    Several of one name are listed: `1, 2`.
    """
    versions: dict[str, list[str]] = {}
    for package in part(bill, "components") or []:
        versions.setdefault(package["name"], []).append(package.get("version") or "unknown")
    return {name: ", ".join(sorted(several)) for name, several in versions.items()}


def required_runs(runs: Collection[str]) -> set[str]:
    """Return the runs of a manifest that an image must pass: the usual one of each format.

    Where a format was not run by its usual program, by whichever it was. `oci`, `sif` and
    `charliecloud` are by the usual program. The others are optional: `oci-docker` is by a further
    program, `sif-mpi-hybrid-srun` of ranks that a launcher started, `oci-bench` of a measurement.
    """
    usual = {run for run in runs if "-" not in run}
    return usual | {run for run in runs if run.partition("-")[0] not in usual}


def _check_formats(key: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in FORMATS:
            raise ValueError(f"{key}.{name}: unknown format")


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A built thing on disk. `format` is oci, sif or charliecloud; `size` counts bytes.

    `digest` is `sha256:…`: of the manifest for an OCI layout, of the file for the others. Empty is
    that of a SIF which has yet to be read for its proof.
    `tree_digest` is the hash over the root file system in it.
    """

    format: str
    path: Path
    digest: str
    size: int
    tree_digest: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of one check in one format. `outcome` is passed, failed or skipped.

    `reason` is one line: the finding, why it failed, or why it was skipped. `data` holds
    measured values where the check printed any; `output` the end of what it printed.
    """

    check: str
    outcome: str
    reason: str
    duration_s: float = 0.0
    data: Mapping[str, object] = field(default_factory=dict)
    output: str = ""

    @property
    def applies(self) -> bool:
        """True if the check applies to the image; the reason of a skipped one may deny that."""
        return self.outcome != SKIPPED or self.data.get("applies") is not False

    @property
    def lacked_gpu(self) -> bool:
        """True if the check passed without a GPU, as the negative control does."""
        return self.data.get("gpu_here") is False
