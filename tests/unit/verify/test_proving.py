"""From artifacts to proof, with a small image in three formats and runners that are made up.

What is written is compared as a whole with golden files. UPDATE_GOLDEN=1 writes them anew: read the
difference.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import pytest
from made_formats import SifPart, sif_scripts, write_sif
from manifest_samples import document
from samples import a_file, a_folder, compare_with_golden, tar_bytes
from test_check_outcomes import FakeRunner, done, env

from builder import __version__
from builder.artifacts.oci import LayerBlob, blob_path, finish_layout, read_layout, start_layout
from builder.artifacts.sif import JSON
from builder.build.engines import Tools
from builder.build.run import BuildSettings, Run
from builder.distribute.pull.receipts import ProgramSettings, PulledImage, PullReceipt
from builder.distribute.pull.verification import verify_pulled
from builder.model import FORMATS, Artifact, Outcome
from builder.model.digests import digest_of, digest_of_file
from builder.model.errors import BadInput, MissingPrerequisite, StepFailed
from builder.model.manifest import InImageCheck, ProvenImage
from builder.model.measurement import HostFacts
from builder.model.planned import environment_text
from builder.model.records import write as as_json
from builder.system.home import Home
from builder.system.process import Completed, Processes
from builder.system.terminal import Progress
from builder.verify import preparation
from builder.verify.finished_images import opened, prove_again
from builder.verify.proof import Verified, prove
from builder.verify.runners import RUNNERS
from builder.verify.runners.protocol import Container
from builder.verify.targets import ProofTarget

VARIABLES = {"PATH": "/bin", "MODE": "fast"}
LABELS = {"title": "x", "build-images.identifier": "tools-1-x86_64"}
SETTINGS = {
    "Env": [f"{name}={text}" for name, text in VARIABLES.items()],
    "Cmd": ["/bin/bash"],
    "Labels": LABELS,
    "WorkingDir": "/srv",
}
SCRIPT = "/opt/build-images/checks/10-hello"
TREE = [
    *(a_folder(name) for name in ("bin", "opt", "opt/build-images", "opt/build-images/checks")),
    a_file(SCRIPT[1:], "#!/bin/sh\necho hello\n", mode=0o755),
]
HELLO = InImageCheck(name="hello", script=SCRIPT, needs=(), timeout_s=60)
TARGET = ProofTarget(
    identifier="tools-1-x86_64",
    arch="x86_64",
    environment=VARIABLES,
    checks=(HELLO,),
    directory="/srv",
    harness={"checks/10-hello": hashlib.sha256(b"#!/bin/sh\necho hello\n").hexdigest()},
)
HOST = HostFacts(arch="x86_64", kernel="6.1.0", cpu="a processor", cores=2, os="Debian 12")
VERSIONS = {"buildah": "1.28.2", "apptainer": "1.3.0", "ch-run": "0.38", "qemu": "9.2"}
RIGHT = {
    "sh": done(env("PATH=/bin", "MODE=fast", "HOME=/tmp", directory="/srv")),
    SCRIPT: done('data: {"words": 1}\nhello\n'),
}


class Unpacks(Processes):
    """Reads the formats in the place of the programs that do; nothing is started."""

    def __init__(self, of_sif: bytes) -> None:
        super().__init__()
        self._of_sif = of_sif

    @contextlib.contextmanager
    def reading_from(self, argv: Sequence[Any]) -> Iterator[IO[bytes]]:
        self.options = argv[1:-1]
        if argv[0] == "sqfs2tar":
            yield io.BytesIO(self._of_sif)
        else:
            assert argv[:3] == ["pigz", "--decompress", "--stdout"]
            with gzip.open(argv[3]) as stream:
                yield cast("IO[bytes]", stream)


@dataclasses.dataclass
class Machine:
    """A machine that proves a small image: the ends of commands in each format, or an error."""

    folder: Path
    run: Run
    results: dict[str, Mapping[str, Completed] | Exception]
    opened: list[Container]

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """As packing leaves them: a SIF is not hashed before its tree is read."""
        layout, tarball = self.folder / "image.oci", self.folder / "image.tar.gz"
        return {
            "oci": artifact("oci", layout, read_layout(layout).digest),
            "sif": artifact("sif", self.folder / "image.sif"),
            "charliecloud": artifact("charliecloud", tarball, digest_of_file(tarball)),
        }

    def prove(self, *runners: str, target: ProofTarget = TARGET) -> Verified[ProvenImage]:
        return prove(
            self.run,
            target,
            self.artifacts,
            work=self.folder / "work",
            folder=self.folder,
            runners=runners,
        )


def artifact(name: str, path: Path, digest: str = "") -> Artifact:
    return Artifact(format=name, path=path, digest=digest, size=100, tree_digest="")


def write_formats(folder: Path) -> bytes:
    """The image in three formats; what sqfs2tar prints of the SIF."""
    layer_tar = tar_bytes(*TREE)
    start_layout(folder / "image.oci")
    layer = LayerBlob(
        diff_id=digest_of(layer_tar), digest=digest_of(layer_tar), size=len(layer_tar)
    )
    blob_path(folder / "image.oci", layer.digest).write_bytes(layer_tar)
    config = {"architecture": "amd64", "os": "linux", "config": SETTINGS}
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id]}
    finish_layout(folder / "image.oci", {"rootfs": rootfs, **config}, [layer])
    variables = a_file("ch/environment", environment_text(VARIABLES))
    tarball = tar_bytes(*TREE, a_folder("ch"), variables)
    (folder / "image.tar.gz").write_bytes(gzip.compress(tarball, mtime=0))
    copied = SifPart(kind=JSON, name="oci-config.json", content=json.dumps(SETTINGS).encode())
    write_sif(folder / "image.sif", [SifPart(content=b"hsqs", arch=b"02"), copied])
    scripts = (a_file(path, text) for path, text in sif_scripts(VARIABLES, LABELS).items())
    return tar_bytes(*TREE, *scripts)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    (tmp_path / "work").mkdir()
    tools = Tools(processes=Unpacks(write_formats(tmp_path)), home=Home(path=tmp_path / "home"))
    run = Run(
        tools=tools,
        engine=cast("Any", None),
        settings=BuildSettings(project=tmp_path, out=tmp_path),
        progress=Progress(level=0),
        host=HOST,
        versions=VERSIONS,
    )
    results: dict[str, Mapping[str, Completed] | Exception] = {}
    made = Machine(folder=tmp_path, run=run, results=results, opened=[])
    for name, kind in RUNNERS.items():

        @contextlib.contextmanager
        def opened(container: Container, name: str = name) -> Iterator[Any]:
            made.opened.append(container)
            result = made.results.get(name, RIGHT)
            if isinstance(result, Exception):
                raise result
            yield FakeRunner(result)

        monkeypatch.setitem(RUNNERS, name, dataclasses.replace(kind, open=opened))
    monkeypatch.setattr(Tools, "which", lambda _tools, name: name)
    monkeypatch.setattr(Tools, "version", lambda _tools, name: f"{name} of this machine")
    monkeypatch.setattr(Tools, "ordinary_user", None)
    monkeypatch.setattr(preparation, "_lacking", lambda *_: "")
    monkeypatch.setattr(preparation, "runs_nothing", lambda *_: "")
    return made


def compare(machine: Machine, text: str, name: str) -> None:
    """Compare with a golden file all but times, and the tarball as this machine packs it."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\+00:00|Z)", "TIME", text)
    text = text.replace(f"build-images@{__version__}", "build-images@VERSION")
    text = text.replace(
        digest_of_file(machine.folder / "image.tar.gz").partition(":")[2], "TARBALL"
    )
    compare_with_golden(text, f"proving/{name}")


def as_text(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


def manifest_part(proof: Verified[ProvenImage]) -> dict[str, Any]:
    """The part of a manifest that a proof gives, as JSON."""
    part: dict[str, Any] = as_json(proof.record)
    assert part.pop("image") == TARGET.identifier
    return part


def equal_of(proof: Verified[ProvenImage]) -> Outcome:
    """The outcome of comparing the formats, which is the first of each run."""
    return next(iter(proof.record.checks.values()))[0]


def test_an_image_that_is_sound_is_proven(machine: Machine) -> None:
    proof = machine.prove()
    assert proof.untried == {}
    assert proof.record.emulated_runs == ()
    compare(machine, as_text(manifest_part(proof)), "manifest.json")
    files = [str(path.relative_to(machine.folder)) for path in machine.folder.glob("evidence/*")]
    for name in files:
        compare(machine, (machine.folder / name).read_text(), name)
    assert sorted(files) == sorted(
        [*proof.record.evidence, *(f"evidence/{name}.xml" for name in FORMATS)]
    )
    assert len(machine.opened) == 3
    for container in machine.opened:
        assert (container.directory, container.gpu, container.binds) == ("/srv", False, {})


def test_a_check_that_fails_in_one_format_fails_the_image(machine: Machine) -> None:
    machine.results["apptainer"] = {**RIGHT, SCRIPT: done("", 1, "no such file\n")}
    part = manifest_part(machine.prove())
    assert part["outcome"] == "failed"
    outcomes = {name: [one["outcome"] for one in part["checks"][name]] for name in part["checks"]}
    assert outcomes == {
        "oci": ["passed"] * 3,
        "sif": ["passed", "passed", "failed"],
        "charliecloud": ["passed"] * 3,
    }
    assert part["checks"]["sif"][2]["reason"] == "no such file"


def test_another_runner_has_evidence_of_its_own(machine: Machine) -> None:
    proof = machine.prove("docker", "apptainer")
    assert [*proof.runs] == ["oci-docker", "sif"]
    names = [name for name in proof.record.evidence if name.endswith("-docker.json")]
    assert names == ["evidence/oci-docker.json"]
    statement = json.loads((machine.folder / names[0]).read_text())
    assert "docker of this machine" in json.dumps(statement)
    assert [*proof.record.artifacts] == ["oci", "sif", "charliecloud"]


def test_a_container_that_does_not_start_fails_its_format(machine: Machine) -> None:
    machine.results["charliecloud"] = StepFailed("ch-run: exit status 1", tail=["ch-run: no"])
    part = manifest_part(machine.prove())
    assert part["outcome"] == "failed"
    assert {one["outcome"] for one in part["checks"]["charliecloud"][1:]} == {"failed"}
    assert {one["outcome"] for one in part["checks"]["oci"]} == {"passed"}


def test_what_the_machine_lacks_says_nothing_of_the_image(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.results["apptainer"] = MissingPrerequisite("apptainer: no such program", hint="get it")
    machine.results["charliecloud"] = StepFailed("ch-run: exit status 1", tail=["ch-run: no"])
    monkeypatch.setattr(preparation, "_lacking", lambda kind, *_: f"{kind.name}: too old")
    proof = machine.prove()
    assert [*proof.runs] == ["oci"]
    assert proof.untried == {
        "sif": "apptainer: no such program",
        "charliecloud": "charliecloud: too old",
    }
    assert manifest_part(proof)["outcome"] == "built"
    machine.results["buildah"] = MissingPrerequisite("buildah: no such program")
    with pytest.raises(MissingPrerequisite, match="tools-1-x86_64: this machine lacks what its"):
        machine.prove()


def test_formats_that_differ_fail_all_of_them(machine: Machine) -> None:
    other = tar_bytes(*TREE, a_file("bin/more", "x"), a_folder("ch"))
    (machine.folder / "image.tar.gz").write_bytes(gzip.compress(other))
    proof = machine.prove()
    part = manifest_part(proof)
    assert (part["formats_equal"], part["outcome"]) == (False, "failed")
    assert "/bin/more: only in the second" in equal_of(proof).reason
    assert [outcomes[0] for outcomes in proof.record.checks.values()] == [equal_of(proof)] * 3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("image.tar.gz", "incomplete charliecloud artifact"),
        ("image.sif", "image.sif"),
        ("image.oci", "incomplete oci artifact"),
    ],
)
def test_an_artifact_that_is_damaged_is_not_equal(name: str, reason: str, machine: Machine) -> None:
    path, packed = machine.folder / name, machine.artifacts["oci"].digest
    [path] = read_layout(path).layers if path.is_dir() else [path]
    path.write_bytes(path.read_bytes()[:30])
    proof = machine.prove()
    assert proof.record.artifacts["oci"].digest == packed
    assert equal_of(proof).outcome == "failed"
    assert reason in equal_of(proof).reason


def test_a_foreign_image_is_emulated_and_says_by_what(machine: Machine) -> None:
    host = dataclasses.replace(HOST, arch="aarch64")
    machine.run = dataclasses.replace(machine.run, host=host)
    proof = machine.prove()
    assert proof.record.emulated_runs == ("charliecloud", "oci", "sif")
    part = manifest_part(proof)
    assert (part["emulated"], part["emulated_runs"]) == (True, ["charliecloud", "oci", "sif"])
    assert "qemu 9.2" in (machine.folder / proof.record.evidence[0]).read_text()


def test_a_gpu_that_disappears_ends_what_needs_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = dataclasses.replace(HOST, driver="550.1", gpus=("V100", "V100"))
    machine.run = dataclasses.replace(machine.run, host=gpu)
    monkeypatch.setattr("builder.verify.proof.host_facts", lambda: HOST)
    check = dataclasses.replace(HELLO, needs=("gpu",))
    target = dataclasses.replace(TARGET, checks=(check,))
    given = env("PATH=/bin", "MODE=fast", "NVIDIA_VISIBLE_DEVICES=void", directory="/srv")
    found = {"sh": done(given), SCRIPT: done("no GPU is left\n", 77)}
    machine.results["apptainer"] = found
    proof = machine.prove("apptainer", target=target)
    environment, outcome = proof.record.checks["sif"][1:]
    assert (environment.check, environment.outcome) == ("environment", "passed")
    assert (outcome.check, outcome.outcome) == ("hello", "failed")
    assert "a GPU disappeared during the run: V100, V100 before, none after" in outcome.reason
    assert [container.gpu for container in machine.opened] == [True]
    monkeypatch.setattr("builder.verify.proof.host_facts", lambda: gpu)
    control = dataclasses.replace(check, name="gpu-control")
    machine.results["apptainer"] = {**RIGHT, "/opt/build-images/checks/gpu-control": done("no")}
    target = dataclasses.replace(target, checks=(control,))
    proof = machine.prove("apptainer", target=target)
    lacked = {one.check: one.lacked_gpu for one in proof.record.checks["sif"]}
    assert (lacked["gpu-control"], lacked["gpu-withheld"]) == (False, False)
    assert [container.gpu for container in machine.opened] == [True, True, False]
    machine.run = dataclasses.replace(machine.run, host=HOST)
    proof = machine.prove("apptainer", target=target)
    assert [one.check for one in proof.record.checks["sif"] if one.lacked_gpu] == ["gpu-control"]


def test_what_was_pulled_is_proven_by_its_own_checks(machine: Machine) -> None:
    """There is no manifest: the receipt says what a container's variables have to be."""
    settings = ProgramSettings(
        environment=tuple(f"{name}={text}" for name, text in VARIABLES.items()), directory="/srv"
    )
    for name, artifact in machine.artifacts.items():
        digest = artifact.digest or digest_of_file(artifact.path)
        size = 0 if name == "oci" else artifact.path.stat().st_size
        receipt = PullReceipt(
            name="tools-1-x86_64",
            format=name,
            digest=digest,
            image=PulledImage(architecture="x86_64"),
            run=settings,
        )
        verified = verify_pulled(machine.run, machine.folder, receipt, ())
        record = verified.record
        assert (record.outcome, verified.runs, record.formats_equal) == ("verified", (name,), None)
        assert [one.outcome for one in record.checks[name]] == [
            *("skipped", "skipped", "passed", "passed"),  # nothing to compare, harness unknown
        ]
        [kept] = record.artifacts.values()
        assert (kept.path.name, kept.digest, kept.size) == (artifact.path.name, digest, size)
    with pytest.raises(BadInput, match="--runner apptainer: it runs the sif artifact, which is"):
        verify_pulled(machine.run, machine.folder, receipt, ["apptainer"])
    (machine.folder / "image.tar.gz").write_bytes(gzip.compress(tar_bytes(a_folder("bin"))))
    with pytest.raises(BadInput, match=r"but receipt\.json says sha256:"):
        verify_pulled(machine.run, machine.folder, receipt, ())


# Again, from what a folder holds.


MANIFEST = {
    "schema": "build-images/manifest/v1",
    "image": "tools-1-x86_64",
    "cell": {"arch": "x86_64", "mpi": "none"},
    "content_key": "0",
    "engine": "buildah",
    "outcome": "built",
    "checks": {},
    "evidence": [],
    "inputs": {
        "specs": {"files/checks/10-hello": hashlib.sha256(b"#!/bin/sh\necho hello\n").hexdigest()}
    },
    "in_image_checks": [
        {"name": "hello", "script": SCRIPT, "needs": [], "timeout_s": 60},
    ],
}


@pytest.fixture
def manifest(machine: Machine) -> dict[str, Any]:
    """The manifest of the main job."""
    part = manifest_part(machine.prove())
    return document({**MANIFEST, "artifacts": part["artifacts"]})


def write(machine: Machine, manifest: Mapping[str, Any]) -> None:
    (machine.folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_finished_image_is_proven_again(machine: Machine, manifest: dict[str, Any]) -> None:
    for path in (machine.folder / "evidence").iterdir():
        path.unlink()
    write(machine, manifest)
    machine.opened.clear()
    verified = prove_again(machine.run, machine.folder)
    assert (verified.runs, verified.untried) == (("oci", "sif", "charliecloud"), {})
    assert not verified.has_failed
    written = (machine.folder / "manifest.json").read_text()
    assert json.loads(written) == as_json(verified.record)
    with opened(machine.folder, machine.run.tools) as image:
        assert image.manifest == json.loads(written)
        assert [*image.target.harness] == ["checks/10-hello"]
    without = {key: value for key, value in json.loads(written).items() if key != "digests"}
    compare(machine, as_text(without), "again.json")
    for name, digest in verified.record.digests.items():
        assert digest_of_file(machine.folder / name) == digest
    assert {*verified.record.evidence} <= verified.record.digests.keys()
    assert (machine.folder / "contents.json.gz").is_file()
    for container in machine.opened:
        assert not container.artifact.exists(), "what was proven is a copy, which is gone"
        assert container.artifact.parent.name.startswith("verify-"), "which `gc` removes"
    write(machine, {**manifest, "inputs": {}})  # as earlier versions wrote it
    with opened(machine.folder, machine.run.tools) as image:
        assert image.target.harness == {}
    assert not [*(machine.folder / "home/work").iterdir()]


def test_a_run_whose_evidence_contradicts_itself_is_not_said_to_be_verified(
    machine: Machine, manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a machine whose clock starts in 1970: `publish` and the report refuse it, too."""
    write(machine, manifest)
    monkeypatch.setattr("builder.verify.proof.now", lambda: "1970-01-01T00:00:09+00:00")
    verified = prove_again(machine.run, machine.folder)
    assert (verified.record.outcome, verified.has_failed) == ("failed", True)
    failure = verified.record.checks["sif"][-1]
    assert (failure.check, "impossible times" in failure.reason) == ("agreement", True)


def test_what_another_runner_finds_is_kept_beside(
    machine: Machine, manifest: dict[str, Any]
) -> None:
    write(machine, manifest)
    prove_again(machine.run, machine.folder)
    machine.results["docker"] = {**RIGHT, SCRIPT: done("", 1, "no\n")}
    verified = prove_again(machine.run, machine.folder, ["docker"])
    assert verified.has_failed
    assert verified.record.checks.keys() == {"oci", "sif", "charliecloud", "oci-docker"}
    assert verified.record.outcome == "verified"


def test_a_project_says_what_is_to_be_proven(machine: Machine, manifest: dict[str, Any]) -> None:
    state = {
        "archive": "debian",
        "suite": "trixie",
        "taken_as": "trixie",
        "date": "2026-11-20T08:00:00+00:00",
        "sha256": "ab" * 32,
        "behind_days": 0,
    }
    write(
        machine,
        {**manifest, "in_image_checks": [], "inputs": {**manifest["inputs"], "indices": [state]}},
    )
    other = dataclasses.replace(HELLO, timeout_s=5)
    expected = dataclasses.replace(TARGET, checks=(other,), environment={}, directory="/")
    verified = prove_again(machine.run, machine.folder, expected=expected)
    [check] = verified.record.in_image_checks
    assert check.timeout_s == 5
    assert not verified.has_failed, "its variables and directory are the layout's"
    evidence = (machine.folder / verified.record.evidence[0]).read_text()
    named = json.loads(evidence)["predicate"]["configuration"][0]["annotations"]["indices"]
    assert named == [state], "the states of package indices are those of the build"


def test_a_runner_needs_its_format(machine: Machine, manifest: dict[str, Any]) -> None:
    artifacts = {"oci": manifest["artifacts"]["oci"]}
    write(machine, {**manifest, "artifacts": artifacts})
    with pytest.raises(BadInput, match="--runner apptainer: it runs the sif artifact") as refused:
        prove_again(machine.run, machine.folder, ["docker", "apptainer"])
    assert refused.value.hint == "this image has: oci"


@pytest.mark.parametrize("name", ["image.oci", "image.sif", "image.tar.gz"])
def test_an_artifact_is_the_one_that_the_manifest_names(
    name: str, machine: Machine, manifest: dict[str, Any]
) -> None:
    write(machine, manifest)
    path = machine.folder / name
    path.rename(machine.folder / "elsewhere")
    with pytest.raises(
        BadInput, match=f"{name}: the manifest names this artifact, but it is missing"
    ):
        prove_again(machine.run, machine.folder)
    os.mkfifo(path)
    with pytest.raises(BadInput, match=f"neither a file nor a folder, so {name} is incomplete"):
        prove_again(machine.run, machine.folder)
    path.unlink()
    (machine.folder / "elsewhere").rename(path)
    for artifact in manifest["artifacts"].values():
        artifact["digest"] = f"sha256:{'0' * 64}"
    write(machine, manifest)
    with pytest.raises(BadInput, match="but the manifest says sha256:0000"):
        prove_again(machine.run, machine.folder)
