"""Kits: what is in them, what their program does, and which of their evidence is taken."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import datetime as dt
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import IO, Any

import pytest
from jsonschema import Draft7Validator
from manifest_samples import document
from test_check_outcomes import done
from test_proving import (
    HELLO,
    HOST,
    MANIFEST,
    RIGHT,
    SCRIPT,
    TARGET,
    Machine,
    machine,  # noqa: F401 - a fixture
    manifest_part,
)

from builder.model.digests import digest_of_file
from builder.model.errors import BadInput, BuildImagesError, Refused
from builder.model.manifest import InImageCheck
from builder.model.records import write as as_json
from builder.system import terminal
from builder.system.process import Completed
from builder.trust.policy.predicates import evidence_of as evidence_of_policy
from builder.verify import checks, kits
from builder.verify.evidence import evidence_schema
from builder.verify.kit_evidence import import_evidence
from builder.verify.kits import Kit, steps_of, write_kit
from builder.verify.measure.programs import KitProgram

PROGRAM = Path(kits.__file__).with_name("kit") / "run"
Change = Callable[[dict[str, Any]], object]
GPU_CHECKS = tuple(
    InImageCheck(name=name, script=f"/checks/{name}", needs=("gpu",), timeout_s=9)
    for name in ("gpu-found", "gpu-control")
)


def now(hours: float = 0) -> str:
    time = dt.datetime.now(tz=dt.timezone.utc) + dt.timedelta(hours=hours)
    return time.isoformat(timespec="seconds")


@pytest.fixture(name="kit")
def kit_of_the_image(machine: Machine) -> Kit:  # noqa: F811
    """A kit of an image that was verified with the usual runners."""
    return made_kit(machine)


def made_kit(machine: Machine, *formats: str, **more: Any) -> Kit:  # noqa: F811
    artifacts = manifest_part(machine.prove())["artifacts"]
    text = json.dumps(document({**MANIFEST, "artifacts": artifacts, **more}))
    (machine.folder / "manifest.json").write_text(text)
    return write_kit(machine.run, machine.folder, machine.folder / "kit.tar", formats)


def steps_as_run(
    kit: Kit, results: Mapping[str, Completed] = RIGHT, second: Mapping[str, Completed] = {}
) -> list[dict[str, Any]]:
    """The commands of a kit, as the node ran them; `cat` sees the variables that `env` saw.

    `second` are the ends in a container without GPUs; none was started if it is empty.
    """
    variables = results["sh"].stdout.partition("\n")[2]
    ends = {False: {"cat": done(variables), **results}, True: second}
    return [
        {
            "argv": [*step.argv],
            "without_gpu": step.without_gpu,
            "status": end.returncode,
            "timed_out": False,
            "waiting": [],
            "seconds": 0.2,
            "stdout": end.stdout,
            "stderr": end.stderr,
        }
        for step in kit.steps
        if second or not step.without_gpu
        for end in [ends[step.without_gpu][step.argv[0]]]
    ]


def evidence_of(kit: Kit, **more: Any) -> dict[str, Any]:
    return {
        "schema": "build-images/kit-evidence/v1",
        "kit": kit.id,
        "image": kit.image,
        "format": "sif",
        "artifact": next(iter(kit.artifacts.values())).digest,
        "proves": "the image",
        "engine": {"name": "apptainer", "version": "1.4.5"},
        "no_gpu": "",
        "started": now(),
        "finished": now(),
        "host": as_json(HOST),
        "gpus_after": [],
        "node": {"name": "Node17.site", "fabric": ["mlx5_0/1: InfiniBand"], "mpi": "", **NO_SMI},
        **({} if "steps" in more else {"steps": steps_as_run(kit)}),
        **more,
    }


NO_SMI = {"nvidia_smi": list[str]()}


def sealed(evidence: Mapping[str, Any]) -> str:
    text = json.dumps(evidence, sort_keys=True)
    return json.dumps({**evidence, "sha256": hashlib.sha256(text.encode()).hexdigest()})


def taken(machine: Machine, text: str) -> Any:  # noqa: F811
    file = machine.folder / "evidence.json"
    file.write_text(text)
    return import_evidence(machine.run, machine.folder, file)


def test_a_kit_has_the_image_the_program_and_the_commands_of_verify(
    machine: Machine,  # noqa: F811
    kit: Kit,
) -> None:
    with tarfile.open(machine.folder / "kit.tar") as archive:
        contents = {name: archive.extractfile(name) for name in archive.getnames()}
        read = {name: file.read() for name, file in contents.items() if file}
        assert archive.getmember("kit/run").mode == 0o755
    assert [*read] == ["kit/run", "kit/kit.json", "kit/image.sif", "kit/image.tar.gz"]
    assert read["kit/run"] == PROGRAM.read_bytes()
    assert read["kit/image.sif"] == (machine.folder / "image.sif").read_bytes()
    assert json.loads(read["kit/kit.json"]) == as_json(kit)
    assert [(step.check, step.argv[0], step.timeout_s) for step in kit.steps] == [
        ("environment", "sh", 120),
        ("environment", "cat", 120),
        ("hello", SCRIPT, 60),
    ]
    assert kit.environment == {**TARGET_ENVIRONMENT, "HOME": "/tmp"}
    with pytest.raises(BadInput, match="not a file"):
        write_kit(machine.run, machine.folder, machine.folder / "work")
    with pytest.raises(BadInput, match="its folder does not exist"):
        write_kit(machine.run, machine.folder, machine.folder / "absent/kit.tar")


def test_a_kit_that_cannot_be_written_leaves_nothing(
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    artifacts = manifest_part(machine.prove())["artifacts"]
    with pytest.raises(BadInput, match="has no sif, which a kit runs"):
        made_kit(machine, "sif", artifacts={"oci": artifacts["oci"]})
    with pytest.raises(BadInput, match="has no sif and no charliecloud, which a kit runs"):
        made_kit(machine, artifacts={"oci": artifacts["oci"]})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    with pytest.raises(OSError, match="No space left"):
        made_kit(machine)
    assert not [*machine.folder.glob("*kit.tar*"), *machine.folder.glob(".kit*")]
    assert not [*machine.folder.glob("kits/*")], "its record would be of no kit"
    with pytest.raises(BadInput, match=r"manifest\.json: a file of the image"):
        write_kit(machine.run, machine.folder, machine.folder / "manifest.json")


TARGET_ENVIRONMENT = {"PATH": "/bin", "MODE": "fast"}


def test_the_negative_control_has_a_container_of_its_own(machine: Machine) -> None:  # noqa: F811
    target = dataclasses.replace(TARGET, checks=(HELLO, *GPU_CHECKS))
    steps = steps_of(target, machine.run.tools)
    assert [(step.check, step.needs_gpu, step.without_gpu) for step in steps[2:]] == [
        ("hello", False, False),
        ("gpu-found", True, False),
        ("gpu-control", True, False),
        ("gpu-found", True, True),
        ("gpu-withheld", False, True),
    ]


def test_evidence_is_judged_as_a_run_of_this_machine(machine: Machine, kit: Kit) -> None:  # noqa: F811
    results = {**RIGHT, SCRIPT: done("a\nb\n", 3, "no such file\n")}
    machine.results["apptainer"] = results
    here = machine.prove("apptainer").record.checks["sif"]
    steps = steps_as_run(kit, results)
    verified = taken(machine, sealed(evidence_of(kit, steps=steps)))
    assert verified.has_failed
    outcomes = verified.record.checks["sif-kit-apptainer-node17-site-e171ce96"]
    assert [(one.check, one.outcome, one.reason) for one in outcomes[1:]] == [
        (one.check, one.outcome, one.reason) for one in here[1:]
    ]
    statement = json.loads(
        (machine.folder / "evidence/sif-kit-apptainer-node17-site-e171ce96.json").read_text()
    )
    run = statement["predicate"]["configuration"][0]["annotations"]
    assert run["host"] == as_json(HOST)
    assert (run["kit"]["node"], run["kit"]["kit"]) == ("Node17.site", kit.id)
    assert run["tools"] == {"apptainer": "1.4.5"}
    Draft7Validator(evidence_schema()).validate(statement)
    assert evidence_of_policy(statement).runner == "apptainer", "`pull` reads it as any other"


def test_a_later_run_of_a_node_replaces_its_record_and_a_worse_one_is_told(
    machine: Machine,  # noqa: F811
    kit: Kit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress: list[str] = []
    monkeypatch.setattr(type(machine.run.progress), "say", lambda _, text: progress.append(text))
    assert taken(machine, sealed(evidence_of(kit))).record.outcome == "built"
    worse = steps_as_run(kit, {**RIGHT, SCRIPT: done("no\n", 1)})
    later = evidence_of(kit, steps=worse, started=now(0.05), finished=now(0.05))
    record = taken(machine, sealed(later)).record
    assert progress == [
        "sif-kit-apptainer-node17-site-e171ce96: hello was passed in the run that this one replaces"
    ]
    assert [*record.checks] == ["sif-kit-apptainer-node17-site-e171ce96"]
    with pytest.raises(Refused, match=r"older than the recorded run of Node17\.site"):
        taken(machine, sealed(evidence_of(kit)))
    other = evidence_of(kit)
    other["node"]["name"] = "node17-site"
    assert len(taken(machine, sealed(other)).record.checks) == 2, "another node has its own run"


DRIVER = "LD_LIBRARY_PATH=/.singularity.d/libs"


@pytest.mark.parametrize(
    ("engine", "variable", "outcome"),
    [
        ("ch-run", "CH_RUNNING=x", "passed"),
        ("ch-run", DRIVER, "failed"),
        ("userns", "CH_RUNNING=x", "failed"),
        ("userns", DRIVER, "passed"),
        ("userns", f"{DRIVER}:/.singularity.d/libs", "passed"),
        ("userns", f"{DRIVER}:/opt/lib", "failed"),
        ("userns", f"{DRIVER}:", "failed"),  # the loader takes an empty one for the working folder
        ("userns", "LD_LIBRARY_PATH=:/.singularity.d/libs", "failed"),
    ],
)
def test_only_an_engines_own_variables_are_allowed(
    engine: str,
    variable: str,
    outcome: str,
    machine: Machine,  # noqa: F811
    kit: Kit,
) -> None:
    sh = done(f"{RIGHT['sh'].stdout}{variable}\0")
    evidence = evidence_of(
        kit,
        format="charliecloud",
        artifact=kit.artifacts["charliecloud"].digest,
        engine={"name": engine, "version": "1"},
        steps=steps_as_run(kit, {**RIGHT, "sh": sh}),
    )
    checks = taken(machine, sealed(evidence)).record.checks
    [environment] = [
        one
        for one in checks[f"charliecloud-kit-{engine}-node17-site-e171ce96"]
        if one.check == "environment"
    ]
    assert environment.outcome == outcome


@pytest.mark.parametrize(
    ("after", "found", "withheld", "outcomes"),
    [
        (["V100"], done("a V100\n"), done("error 100\n"), ["passed", "passed", "passed"]),
        (["V100"], done("no GPU\n", 77), done("error 100\n"), ["skipped", "passed", "passed"]),
        ([], done("no GPU\n", 77), done("error 100\n"), ["failed", "passed", "passed"]),
        (["V100"], done("a V100\n"), done("it computed\n", 1), ["passed", "passed", "failed"]),
    ],
)
def test_gpus_of_the_node_are_judged(
    after: list[str],
    found: Completed,
    withheld: Completed,
    outcomes: list[str],
    machine: Machine,  # noqa: F811
) -> None:
    """With made-up output: the negative control is from a second container, without GPUs."""
    checks = [as_json(HELLO), *map(as_json, GPU_CHECKS)]
    kit = made_kit(machine, in_image_checks=checks)
    script = "/opt/build-images/checks/gpu-{}".format
    control = done("error 100, as it has to\n")
    results = {**RIGHT, script("found"): found, script("control"): control}
    steps = steps_as_run(kit, results, {script("found"): done("none\n", 1), "sh": withheld})
    host = {**as_json(HOST), "driver": "550.1", "gpus": ["V100"]}
    evidence = evidence_of(kit, steps=steps, host=host, gpus_after=after)
    record = taken(machine, sealed(evidence)).record
    by_check = {
        one.check: one.outcome for one in record.checks["sif-kit-apptainer-node17-site-e171ce96"]
    }
    names = ("gpu-found", "gpu-control", "gpu-withheld")
    assert [by_check[name] for name in names] == outcomes
    host["gpus"] = []
    with pytest.raises(Refused, match="gpu-control passed, and the node had no GPU"):
        taken(machine, sealed(evidence_of(kit, steps=steps, host=host, gpus_after=after)))


def changed(**more: Any) -> Change:
    return lambda evidence: evidence.update(more)


def dated(**hours: float) -> Change:
    """Set times when the test runs: minutes may pass since it was collected."""
    return lambda evidence: evidence.update(
        {name: now(from_now) for name, from_now in hours.items()}
    )


def in_step(number: int, **more: Any) -> Change:
    return lambda evidence: evidence["steps"][number].update(more)


NOTHING_PASSED = {"status": 1, "stdout": "", "stderr": "FATAL: no user namespaces"}
OTHER = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        (changed(kit="0" * 32), Refused, "no kit of this image has the name '0000"),
        (changed(kit="../manifest"), Refused, "no kit of this image has the name '../man"),
        (changed(image="another"), Refused, "it is about another, and this image is tools-1"),
        (changed(artifact=OTHER), Refused, "it ran sha256:0000"),
        (changed(format="oci"), Refused, "the kit has no oci for the engine apptainer"),
        (changed(format="charliecloud"), Refused, "the kit has no charliecloud for the engine ap"),
        (changed(engine={"name": "runc", "version": "1"}), Refused, "for the engine runc"),
        (dated(finished=48), Refused, "impossible times"),
        (dated(started=-48), Refused, "impossible times"),
        (dated(started=1), Refused, "impossible times"),
        (dated(finished=0.2), Refused, "by the node's clock; the kit was created at"),
        (changed(started="yesterday"), BadInput, "Invalid isoformat"),
        (changed(schema="x"), BadInput, "schema: expected build-images/kit-evidence/v1"),
        (changed(gpus_after=[1]), BadInput, r"gpus_after[0]: expected a text, not 1"),
        (changed(host={**as_json(HOST), "cores": 0}), BadInput, "about the machine is missing"),
        (changed(host={**as_json(HOST), "cpu": "a\nb"}), BadInput, "is not one line"),
        (changed(steps=[]), Refused, "its steps are not those of the kit; missing: environment"),
        (lambda evidence: evidence["steps"].reverse(), Refused, "missing: none"),
        (lambda evidence: evidence["steps"].pop(), Refused, "not those of the kit; missing: hello"),
        (in_step(2, argv=["/checks/other"]), Refused, "no check that runs /checks/other"),
        (in_step(2, seconds=900), Refused, "its steps took longer than the run"),
        (in_step(2, timed_out=True), Refused, "hello took 0.2 s, and its limit is 60 s"),
        (in_step(2, status=999), BadInput, "the status or the time of a step is impossible"),
        (in_step(2, seconds=10**400), BadInput, "the status or the time of a step is impossible"),
        (in_step(2, stdout="x" * (1 << 21)), BadInput, "the output of a step is too long"),
        (
            lambda evidence: [step.update(NOTHING_PASSED) for step in evidence["steps"]],
            Refused,
            "no check passed, so the fault may be the node's",
        ),
    ],
)
def test_what_is_not_evidence_of_this_image_is_refused(
    change: Change,
    error: type[BuildImagesError],
    reason: str,
    machine: Machine,  # noqa: F811
    kit: Kit,
) -> None:
    evidence = evidence_of(kit)
    change(evidence)
    before = (machine.folder / "manifest.json").read_bytes()
    with pytest.raises(error) as refused:
        taken(machine, sealed(evidence))
    assert reason in str(refused.value)
    assert (machine.folder / "manifest.json").read_bytes() == before
    assert not [*machine.folder.glob("evidence/*kit*")]


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("", BadInput, "Expecting value"),
        ("[]", BadInput, "expected an object"),
        ('{"kit": "a", "kit": "b"}', BadInput, "duplicate key"),
        ("{}", BadInput, "schema: missing"),
    ],
)
def test_what_is_no_evidence_is_said(
    text: str,
    error: type[BuildImagesError],
    reason: str,
    machine: Machine,  # noqa: F811
    kit: Kit,
) -> None:
    del kit
    with pytest.raises(error, match=reason):
        taken(machine, text)


def test_evidence_that_was_edited_is_refused(machine: Machine, kit: Kit) -> None:  # noqa: F811
    text = sealed(evidence_of(kit)).replace("Node17", "Node18")
    with pytest.raises(Refused, match="it was changed after the kit wrote it"):
        taken(machine, text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"content_key": "another"}, "the image was built or packed again"),
        ({"artifacts": {"oci": {"digest": OTHER}}}, "the image was built or packed again"),
        ({"in_image_checks": []}, "the checks of the image changed after the kit was made"),
    ],
)
def test_a_kit_of_an_earlier_image_is_refused(
    change: Mapping[str, Any],
    reason: str,
    machine: Machine,  # noqa: F811
    kit: Kit,
) -> None:
    file = machine.folder / "kits" / f"{kit.id}.json"
    text = sealed(evidence_of(kit))
    kept = json.loads(file.read_text())
    if "content_key" in change:
        kept["content_key"] = "another"
    elif "artifacts" in change:
        kept["oci"] = OTHER
    else:
        del kept["steps"][2]
    file.write_text(json.dumps(kept))
    with pytest.raises(Refused, match=reason):
        taken(machine, text)


# ---- The checks without the image ----

PROGRAM_IN_ELF = b"\x7fELF libmpi.so.40\0prterun\0libamdhip64.so.5\0"
MPI_CHECK = {"name": "mpi", "script": "/opt/build-images/checks/20-mpi", "timeout_s": 9}
SMALL_TREE = {
    "opt/build-images/checks/20-mpi": b"#!/bin/sh\nsh $SRC/quiet.sh mpirun -n 5 $OUT/mpi 5\n",
    "opt/build-images/checks/30-python": b"#!/bin/sh\npython3 $SRC/check.py\n",
    "opt/build-images/src/quiet.sh": b"exec mktemp\n",
    "opt/build-images/src/check.py": b"import this\n",
    "opt/build-images/bin/mpi": PROGRAM_IN_ELF,
    "usr/bin/mpirun.openmpi": PROGRAM_IN_ELF,
    "usr/bin/prterun": b"\x7fELF",
    "usr/bin/mktemp": b"\x7fELF",
    "usr/bin/python3": b"\x7fELF",
    "usr/sbin/ldconfig": b"#!/bin/sh\nexec ldconfig.real\n",  # as on Ubuntu
    "usr/sbin/ldconfig.real": b"\x7fELF",
    "etc/ld.so.conf.d/mpi.conf": b"/usr/local/mpi/lib\n",
    "usr/lib/libmpi.so.40.1": b"\x7fELF",
    "usr/lib/libamdhip64.so.5": b"\x7fELF",
    "usr/lib/openmpi/mca_btl_sm.so": b"\x7fELF",
    "usr/share/doc/openmpi/README": b"",
    "usr/share/large": b"x" * 1000,
}
LINKS = {"usr/bin/mpirun": "mpirun.openmpi", "usr/lib/libmpi.so.40": "libmpi.so.40.1"}


def small_kit(machine: Machine, *checks: Mapping[str, Any], needs: str = "mpi") -> Kit:  # noqa: F811
    """A kit without the image, of a tarball with these files; its manifest is the image's own."""
    artifacts = manifest_part(machine.prove())["artifacts"]
    tarball = machine.folder / "image.tar.gz"
    with tarfile.open(tarball, "w:gz") as archive:
        for path, content in SMALL_TREE.items():
            member = tarfile.TarInfo(f"./{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for path, target in LINKS.items():
            link = tarfile.TarInfo(f"./{path}")
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
    artifacts["charliecloud"]["digest"] = digest_of_file(tarball)
    named = [{"needs": [needs], **check} for check in checks]
    manifest = {**MANIFEST, "artifacts": artifacts, "in_image_checks": named}
    (machine.folder / "manifest.json").write_text(json.dumps(document(manifest)))
    return write_kit(machine.run, machine.folder, machine.folder / "kit.tar", checks_only=True)


def test_a_kit_without_the_image_has_what_its_checks_need(
    machine: Machine,  # noqa: F811
) -> None:
    python = {**MPI_CHECK, "name": "python", "script": "/opt/build-images/checks/30-python"}
    other = {**MPI_CHECK, "name": "other", "needs": []}
    kit = small_kit(machine, MPI_CHECK, python, other)
    assert [step.check for step in kit.steps] == ["environment", "environment", "mpi"]
    assert {name: engine.format for name, engine in kit.engines.items()} == dict.fromkeys(
        ["apptainer", "ch-run", "userns"], "charliecloud"
    )
    # a folder has no script for it, as a SIF has: seen on a GPU
    variables = kit.engines["apptainer"].variables
    assert variables["APPTAINERENV_LD_LIBRARY_PATH"] == "/.singularity.d/libs"
    with tarfile.open(machine.folder / "kit.tar") as archive:
        content = archive.extractfile("kit/checks.tar.gz")
        assert content is not None
        with tarfile.open(fileobj=content) as reduced:
            names = {name.removeprefix("./") for name in reduced.getnames()}
    left_out = {"30-python", "check.py", "python3", "libamdhip64.so.5", "README", "large"}
    expected = {path for path in SMALL_TREE if path.rpartition("/")[2] not in left_out}
    assert names == expected | LINKS.keys()


@pytest.mark.parametrize("needs", ["cuda", "gpu"])
def test_an_image_without_such_checks_has_no_kit_without_it(
    needs: str,
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Either it has none, or their files are too many."""
    monkeypatch.setattr(kits, "_MOST_BYTES", 10)
    with pytest.raises(BadInput, match="has no check of MPI or GPUs for a kit without it"):
        small_kit(machine, MPI_CHECK, needs=needs)


def test_evidence_of_a_kit_without_the_image_is_judged_and_not_recorded(
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress: list[str] = []
    monkeypatch.setattr(type(machine.run.progress), "say", lambda _, text: progress.append(text))
    other = {**MPI_CHECK, "name": "other"}
    kit = small_kit(machine, other, {**MPI_CHECK, "name": "more", "needs": []}, needs="gpu")
    ends = {**RIGHT, "/opt/build-images/checks/20-mpi": done("all is well\n")}
    evidence = evidence_of(
        kit,
        format="charliecloud",
        artifact=kit.artifacts["charliecloud"].digest,
        proves="the node",
        steps=steps_as_run(kit, ends),
    )
    before = (machine.folder / "manifest.json").read_bytes()
    verified = taken(machine, sealed(evidence))
    record = verified.record
    assert (record.outcome, verified.has_failed) == ("passed", False)
    assert record.image == "Node17.site, by the checks of tools-1-x86_64"
    assert [
        one.check for one in record.checks["charliecloud-kit-apptainer-node17-site-e171ce96"]
    ] == [
        "environment",
        "other",
    ]
    assert progress == ["the kit has no image: this proves the node, and nothing was recorded"]
    assert (machine.folder / "manifest.json").read_bytes() == before
    with pytest.raises(Refused, match="it says that it proves the image"):
        taken(machine, sealed({**evidence, "proves": "the image"}))


# ---- The program on the node ----


def program() -> Any:
    """The program of kits, as a module; Python writes nothing beside it."""
    loader = SourceFileLoader("run_of_a_kit", str(PROGRAM))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    exec(compile(PROGRAM.read_bytes(), PROGRAM, "exec"), module.__dict__)
    return module


def test_the_program_is_for_old_pythons_and_imports_the_standard_library_alone() -> None:
    """What Python 3.6 cannot parse would hide the message that it is too old."""
    tree = ast.parse(PROGRAM.read_text(), feature_version=(3, 6))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imported for alias in node.names}
    assert names == {
        *("argparse", "contextlib", "ctypes", "datetime", "errno", "hashlib", "json", "os"),
        *("platform", "re", "shutil", "signal", "subprocess", "sys", "tarfile", "tempfile"),
        *("threading", "time"),
    }


@dataclasses.dataclass
class FakeNode:
    """A node whose engines start commands that end so; `run` is the kit's program on it."""

    folder: Path
    module: Any
    present: set[str]
    ends: dict[str, dict[str, Any]]
    commands: list[list[str]]
    handlers: dict[int, Callable[..., object]]
    unpacked: list[str]
    folders: list[str]

    def run(self, *words: str) -> int:
        scratch = () if "--scratch" in words else ("--scratch", str(self.folder))
        status: int = self.module.main([*words, *scratch])
        return status


END = {"status": 0, "timed_out": False, "waiting": [], "seconds": 0.1, "stdout": "", "stderr": ""}


@pytest.fixture(name="node")
def fake_node(
    machine: Machine,  # noqa: F811
    kit: Kit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> FakeNode:
    del kit
    folder = tmp_path / "node"
    folder.mkdir()
    with tarfile.open(machine.folder / "kit.tar") as archive:
        archive.extractall(folder)
    node = FakeNode(
        folder=folder,
        module=program(),
        present={"apptainer", "ch-run"},
        ends={},
        commands=[],
        handlers={},
        unpacked=[],
        folders=[],
    )
    unpack = node.module.unpack

    def run_command(argv: list[str], *more: object) -> dict[str, Any]:
        node.commands.append(argv)
        node.folders.append(str(more[-1]))
        return {**END, **node.ends.get(argv[0], {})}

    def noted_unpack(artifact: object, root: str) -> None:
        node.unpacked.append(Path(root).name)
        unpack(artifact, root)

    replaced = {
        "unpack": noted_unpack,
        "HERE": str(folder / "kit"),
        "run_command": run_command,
        "output_of": lambda argv: f"{argv[0]} version 1.2.3\nmore",
        "end_all": lambda *_: None,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(node.module, name, value)
    monkeypatch.setattr(node.module.shutil, "which", lambda name: name in node.present)
    monkeypatch.setattr(node.module.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(node.module.signal, "signal", node.handlers.__setitem__)
    monkeypatch.setattr(node.module.ctypes, "CDLL", lambda *_: contextlib.nullcontext)
    monkeypatch.setattr(contextlib.nullcontext, "prctl", lambda *_: 0, raising=False)
    monkeypatch.chdir(folder)
    return node


@pytest.mark.parametrize(
    ("present", "broken", "engine"),
    [
        ({"apptainer", "ch-run"}, (), "apptainer"),
        ({"ch-run"}, (), "ch-run"),
        (set[str](), (), "userns"),
        ({"apptainer", "ch-run"}, ("apptainer",), "ch-run"),
    ],
)
def test_the_first_engine_that_starts_the_image_runs_it(
    present: set[str],
    broken: tuple[str, ...],
    engine: str,
    node: FakeNode,
    machine: Machine,  # noqa: F811
) -> None:
    node.present, node.ends = present, {name: {"status": 255} for name in broken}
    assert node.run("--output", "e.json") == 0
    evidence = json.loads((node.folder / "e.json").read_text())
    assert evidence["engine"]["name"] == engine
    assert [command[-1] for command in node.commands[-3:]] == ["/srv", "/proc/self/environ", SCRIPT]
    assert sorted(path.name for path in node.folder.iterdir()) == ["e.json", "kit"]
    with pytest.raises(Refused, match="no check passed"):  # they printed nothing
        taken(machine, (node.folder / "e.json").read_text())


@pytest.mark.parametrize(
    ("libraries", "end", "no_gpu"),
    [
        ({}, {}, "libcuda.so.1 is not found on this machine"),
        ({"libcuda.so.1": "/x"}, {}, ""),
        ({"libcuda.so.1": "/x"}, {"status": 125, "stderr": "mount: no"}, "mount: no"),
    ],
)
def test_gpus_are_passed_to_a_user_namespace_if_it_starts_with_the_driver(
    libraries: dict[str, str],
    end: dict[str, Any],
    no_gpu: str,
    node: FakeNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(node.module, "driver_libraries", lambda: libraries)
    python = node.module.sys.executable
    node.ends = {python: end}
    engine = node.module.Engine(node.module.read_kit(), "userns", str(node.folder))
    engine.offer_gpus()
    assert engine.no_gpu == no_gpu
    for command in node.commands:
        assert (command[0], command[3]) == (python, "--enter-with-gpus")


@pytest.mark.parametrize(
    ("words", "temporary", "end", "status"),
    [
        ((), "", {"timed_out": True}, 1),
        (("--scratch", "scratch"), "", {}, 0),
        (("--engine", "ch-run", "--scratch", "scratch"), "", {}, 0),
        ((), "scratch", {}, 0),
        ((), ".", {}, 0),
        ((), "", {"stdout": "a\N{LATIN SMALL LETTER U WITH DIAERESIS}b\n"}, 0),
    ],
)
def test_a_run_on_an_unusual_node_leaves_evidence(
    words: tuple[str, ...],
    temporary: str,
    end: dict[str, Any],
    status: int,
    node: FakeNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command without an end, relative scratch folders, and a terminal without UTF-8."""
    (node.folder / "scratch").mkdir()
    node.ends = {"apptainer": end}
    monkeypatch.setenv("TMPDIR", temporary)
    monkeypatch.setattr(node.module.tempfile, "tempdir", None)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    words = words if words or temporary else ("--scratch", str(node.folder))
    assert node.module.main([*words, "--output", "e.json"]) == status
    evidence = json.loads((node.folder / "e.json").read_text())
    assert evidence["steps"][-1]["stdout"] == end.get("stdout", "")
    assert all(Path(folder).is_absolute() for folder in node.folders)
    assert not [*(node.folder / "scratch").iterdir()]


@pytest.mark.parametrize("ignored", [(), (signal.SIGHUP,), (signal.SIGINT, signal.SIGHUP)])
def test_an_interrupted_run_cleans_up_whatever_comes_next(
    ignored: tuple[signal.Signals, ...], node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is ignored when it starts, as SIGHUP by `nohup`, stays ignored."""
    before: list[signal.Signals] = []
    usual, remove = signal.SIG_DFL, node.module.remove

    def command(*_: object) -> None:
        before.extend(signal.Signals(number) for number in node.handlers)
        node.handlers[signal.SIGTERM](signal.SIGTERM, None)

    def interrupted_remove(folder: str) -> None:
        for number, handler in [*node.handlers.items()]:
            handler(number, None)
        remove(folder)

    def handler_of(number: signal.Signals) -> signal.Handlers:
        return signal.SIG_IGN if number in ignored else usual

    monkeypatch.setattr(node.module.signal, "getsignal", handler_of)
    monkeypatch.setattr(node.module, "run_command", command)
    monkeypatch.setattr(node.module, "remove", interrupted_remove)
    assert node.run("--output", "e.json") == 130
    assert {*before} == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} - {*ignored}
    assert [path.name for path in node.folder.iterdir()] == ["kit"]


@pytest.mark.parametrize(
    ("words", "spoil", "status", "text"),
    [
        (["--engine", "ch-run"], "absent", 4, "no engine here starts the image: ch-run: ch-run is"),
        ([], "broken", 4, "apptainer: no user namespaces; ch-run: ch-run is missing; userns: "),
        ([], "foreign", 4, "apptainer: the image is for x86_64, and this machine is ppc64le: no"),
        ([], "altered", 2, "image.sif: its digest is sha256:"),
        ([], "no image", 2, "image.sif: No such file or directory"),
        ([], "no kit", 2, "kit.json: not the description of a kit"),
        (["--output", "none/e.json"], "", 4, "No such file or directory"),
        (["--output", "kit"], "", 2, "kit: not a file: name another by --output"),
        (["--engine", "userns"], "root", 4, "run as an ordinary user, as MPI programs have to"),
    ],
)
def test_what_is_wrong_on_the_node_is_one_line(
    words: list[str],
    spoil: str,
    status: int,
    text: str,
    node: FakeNode,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sif = node.folder / "kit/image.sif"
    if spoil in {"broken", "foreign", "absent"}:
        node.present = {"apptainer"}
        end = {"status": 1, "stderr": "no user namespaces\n"}
        node.ends = dict.fromkeys(["apptainer", node.module.sys.executable], end)
    if spoil == "foreign":
        facts = {**node.module.host_facts(), "arch": "ppc64le"}
        monkeypatch.setattr(node.module, "host_facts", lambda: facts)
    elif spoil == "altered":
        sif.write_bytes(sif.read_bytes() + b"more")
    elif spoil == "root":
        monkeypatch.setattr(node.module.os, "geteuid", lambda: 0)
    elif spoil == "no image":
        sif.unlink()
    elif spoil == "no kit":
        (node.folder / "kit/kit.json").write_text("[")
    assert node.run(*words) == status
    lines = capsys.readouterr().err.splitlines()
    assert text in lines[-1]
    assert [line for line in lines if "error" in line] == lines[-1:]
    assert not node.commands or spoil in {"broken", "foreign"}
    assert [path.name for path in node.folder.iterdir()] == ["kit"]


@pytest.mark.parametrize(
    ("cdi", "helpers", "reason", "option"),
    [
        ("apptainer", (), "", "--nv"),
        ("--cdi", (), "no specification of nvidia.com/gpu in JSON", ""),
        ("", (), "ch-fromhost is missing on this machine", ""),
        ("", ("ch-fromhost", "nvidia-container-cli"), "", "--nvidia"),
    ],
)
def test_how_gpus_are_passed_to_the_image(
    cdi: str,
    helpers: tuple[str, ...],
    reason: str,
    option: str,
    node: FakeNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Made-up GPUs: no kit has run on a real one yet."""
    file = node.folder / "kit/kit.json"
    about = json.loads(file.read_text())
    gpu = {"check": "gpu-found", "argv": ["/gpu"], "timeout_s": 9, "needs_gpu": True}
    second = {**gpu, "check": "gpu-withheld", "needs_gpu": False, "without_gpu": True}
    about["steps"] += [{**gpu, "without_gpu": False}, second]
    file.write_text(json.dumps(about))
    facts = {**node.module.host_facts(), "driver": "550.1", "gpus": ["V100"]}
    monkeypatch.setattr(node.module, "host_facts", lambda: facts)
    monkeypatch.setattr(node.module, "output_of", lambda argv: f"{argv[0]} 1.2 {cdi}")
    node.present = {"apptainer"} if cdi == "apptainer" else {"ch-run", *helpers}
    assert node.run("--output", "e.json") == 0
    evidence = json.loads((node.folder / "e.json").read_text())
    assert evidence["no_gpu"] == reason
    expected = [False] if reason else [False, True]
    assert [step["without_gpu"] for step in evidence["steps"]][3:] == expected
    passing = [command for command in node.commands if option and option in command]
    assert bool(passing) is bool(option)
    assert not any("--nv" in command for command in node.commands if "exit 0" in command)
    withheld = [command for command in node.commands if command[-1] == "/gpu"][1:]
    assert not any(option and option in command for command in withheld)
    copied = [Path(command[-1]).name for command in passing if command[0] == "ch-fromhost"]
    folders = {Path(word).name for command in withheld for word in command} & {*node.unpacked}
    assert (copied, folders) == ((["image"], {"second-image"}) if helpers else ([], folders))
    assert node.unpacked.count("second-image") == bool(helpers)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("a\tb\x1b[0m\nsecond", "a b [0m"),
        ("x" * 900, "x" * 500),
        ("\x07\n", "unknown"),
        ("", ""),
    ],
)
def test_facts_are_written_as_the_import_takes_them(
    printed: str,
    expected: str,
    node: FakeNode,
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that the node's programs and its kernel say, also if they say nothing."""
    monkeypatch.setattr(node.module, "output_of", lambda _: printed)
    monkeypatch.setattr(node.module, "text_of", lambda _: f"model name : {printed}\n")
    monkeypatch.setattr(node.module.platform, "release", lambda: printed)
    assert node.run("--output", "e.json") == 0
    evidence = json.loads((node.folder / "e.json").read_text())
    assert evidence["node"]["mpi"] == expected
    assert evidence["host"]["kernel"].startswith(expected or "unknown")
    with pytest.raises(Refused, match="no check passed"):  # it is not malformed
        taken(machine, (node.folder / "e.json").read_text())


@pytest.mark.parametrize(
    ("number", "below", "signals"),
    [
        (signal.SIGTERM, [[7], [7, 8], [8], []], [7, 8]),
        (signal.SIGKILL, [[7], [7, 8], [8], []], [7, 7, 8, 8]),
        (signal.SIGKILL, [[]], []),
    ],
)
def test_a_signal_reaches_processes_that_were_started_meanwhile(
    number: signal.Signals,
    below: list[list[int]],
    signals: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, sent = program(), list[int]()
    left = iter(below)
    monkeypatch.setattr(module, "processes_below", lambda _: next(left))
    monkeypatch.setattr(module.os, "kill", lambda pid, _: sent.append(pid))
    module.end_all(number, 5)
    assert sent == signals


def test_a_process_that_the_kernel_cannot_end_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It never closes its output, either."""
    module = program()
    pipes = [module.os.pipe() for _ in range(2)]

    class Stuck:
        def __init__(self, *_: object, **__: object) -> None:
            self.returncode = None
            self.stdout, self.stderr = (open(end, "rb") for end, _ in pipes)  # noqa: PTH123, SIM115

        def wait(self, timeout: float) -> None:
            raise module.subprocess.TimeoutExpired("stuck", timeout)

    monkeypatch.setattr(module.subprocess, "Popen", Stuck)
    monkeypatch.setattr(module, "ENDING_S", 0.05)
    monkeypatch.setattr(module, "processes_below", lambda _: [])
    done = module.run_command(["stuck"], 9, {}, str(tmp_path))
    assert (done["status"], done["timed_out"], done["stdout"]) == (-9, True, "")
    for _, writer in pipes:
        module.os.close(writer)


ENDS = 1 << 19  # bytes that are kept of each end
FAILURE = b"\nrank 3 FAILED here\n"
FALSE_ALARMS = b"XFAILED as expected\nCUBLAS_STATUS_EXECUTION_FAILED\n\nFAILED_TESTS=0\n" * 3000


@pytest.mark.parametrize(
    ("middle", "found"),
    [
        (b"x" * 300_000 + FAILURE, "\nrank 3 FAILED here\n"),
        (b"x" * (ENDS - 7 - 12) + FAILURE, "\nrank 3 FAILED here\n"),  # begins in the first part
        (b"x" * (ENDS - 7) + FAILURE, "\nrank 3 FAILED here\n"),
        (b"x" * ENDS + FALSE_ALARMS + FAILURE, "\nrank 3 FAILED here\n"),
        (b"x" * ENDS + b"\n\x1b[31mFAILED\x1b[0m\n", "\n\x1b[31mFAILED\x1b[0m\n"),
        (b"x" * ENDS + b"\nMPI started singletons\n", "\nMPI started singletons\n"),
        (b"x" * ENDS + FALSE_ALARMS, ""),
        (b"x" * ENDS + FAILURE * 9000, "\nrank 3 FAILED here\n"),
    ],
)
def test_output_is_bounded_and_keeps_its_ends_and_denials(middle: bytes, found: str) -> None:
    """The import finds a failure in it, and only where one was printed."""
    printed = b"begins\n" + middle + b"y" * 2_000_000 + b"\nends"
    text = kept_of(program().Reader, printed)
    assert text.startswith("begins\nxx")
    assert text.endswith("yy\nends")
    assert found in text
    assert len(text) <= 1 << 20, "what the import takes"
    assert bool(checks._no_finding("ends", text)) is bool(found)


@pytest.mark.parametrize("size", [2 * ENDS, 2 * ENDS + 1])
def test_output_that_verify_keeps_whole_is_kept(size: int) -> None:
    printed = b"z" * size
    is_whole = kept_of(program().Reader, printed) == printed.decode()
    assert is_whole is (kept_of(terminal.Reader, printed, 9.0) == printed.decode())


def kept_of(reader: Callable[[IO[bytes]], Any], printed: bytes, *wait_s: float) -> str:
    """What a reader keeps of a stream."""
    end, writer = os.pipe()
    with open(end, "rb") as stream, open(writer, "wb") as pipe:  # noqa: PTH123 - descriptors
        kept = reader(stream)
        pipe.write(printed)
        pipe.close()
        text: str = kept.text(*wait_s)
    return text


# ---- Programs that are measured ----

TRIAD = "/opt/build-images/bin/memory-speed"
MEASURED = KitProgram(name="memory-speed", argv=(TRIAD, "256", "5"), needs_gpu=False)


def with_programs(file: Path, *programs: KitProgram) -> None:
    """Add programs to a description of a kit."""
    description = json.loads(file.read_text())
    file.write_text(json.dumps({**description, "programs": [as_json(each) for each in programs]}))


def speed(rate: float) -> Completed:
    return done(f'data: {{"triad_gb_per_s": {rate}}}\nall right\n')


def programs_as_run(*rounds: tuple[float, float], **more: Any) -> list[dict[str, Any]]:
    """The measured program, as the node ran it; the rates bare and in the container."""
    end = {"status": 0, "timed_out": False, "waiting": [], "seconds": 0.2, "stderr": ""}
    return [
        {
            **end,
            "without_gpu": False,
            "argv": [*MEASURED.argv],
            "stdout": speed(rate).stdout,
            "program": MEASURED.name,
            "round": turn,
            "bare": bare,
            **more,
        }
        for turn, pair in enumerate(rounds)
        for bare, rate in zip((True, False), pair, strict=True)
    ]


def test_programs_are_compared_with_bare(machine: Machine, kit: Kit) -> None:  # noqa: F811
    with_programs(machine.folder / f"kits/{kit.id}.json", MEASURED)
    programs = programs_as_run((10, 10), (10, 9.95), (10, 9.93))
    [*before, found] = taken(machine, sealed(evidence_of(kit, programs=programs))).record.checks[
        "sif-kit-apptainer-node17-site-e171ce96"
    ]
    assert "environment" in {one.check for one in before}
    assert (found.check, found.outcome) == ("memory-speed-against-bare", "passed")
    slow = programs_as_run((10, 9), (10, 9), (10, 9))
    verified = taken(machine, sealed(evidence_of(kit, programs=slow)))
    assert verified.has_failed
    assert verified.record.outcome == "failed", "no usual run of this format is there to count"


@pytest.mark.parametrize(
    "change",
    [
        {"argv": ["/bin/true"]},
        {"program": "mpi-speed"},
        {"round": 0},
    ],
)
def test_programs_that_the_kit_does_not_measure_are_refused(
    change: dict[str, Any],
    machine: Machine,  # noqa: F811
    kit: Kit,
) -> None:
    with_programs(machine.folder / f"kits/{kit.id}.json", MEASURED)
    programs = programs_as_run((10, 10), (10, 10), (10, 10), **change)
    with pytest.raises(Refused, match="measured programs that the kit does not, or one twice"):
        taken(machine, sealed(evidence_of(kit, programs=programs)))


@pytest.mark.parametrize(
    ("words", "rounds"), [((), 0), (("--rounds", "2"), 2), (("--rounds", "0"), 0)]
)
def test_the_node_measures_programs_in_a_container_and_bare_in_turn(
    words: tuple[str, ...], rounds: int, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu = dataclasses.replace(MEASURED, name="gpu-memory", needs_gpu=True)
    with_programs(node.folder / "kit/kit.json", MEASURED, on_gpu)
    monkeypatch.setattr(node.module, "bare_argv", lambda root, argv, _: ["bare", root, *argv])
    monkeypatch.setattr(
        node.module, "host_facts", lambda: {"arch": "x86_64", "driver": "", "gpus": []}
    )
    assert node.run("--output", "e.json", *words) == 0
    programs = json.loads((node.folder / "e.json").read_text())["programs"]
    assert [(each["program"], each["round"], each["bare"]) for each in programs] == [
        ("memory-speed", turn, (turn % 2 == 0) == first)
        for turn in range(rounds)
        for first in (True, False)
    ]
    assert node.unpacked == (["bare"] if rounds else []), "Apptainer runs the SIF"
    ran = [command for command in node.commands if TRIAD in command]
    assert len(ran) == 2 * rounds
    if rounds:
        assert ran[0][0] == "bare"
        assert ran[1][0] == "apptainer"
        assert ran[1][-3:] == [*MEASURED.argv]


@pytest.mark.parametrize(
    ("arch", "formats", "reason"),
    [
        (
            "ppc64le",
            ("sif", "charliecloud"),
            "the image is for x86_64, and this machine is ppc64le",
        ),
        ("x86_64", ("sif",), "the kit has no tarball, which is needed to run programs bare"),
    ],
)
def test_without_bare_nothing_is_measured(
    arch: str,
    formats: tuple[str, ...],
    reason: str,
    node: FakeNode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = node.folder / "kit/kit.json"
    with_programs(file, MEASURED)
    description = json.loads(file.read_text())
    artifacts = {name: description["artifacts"][name] for name in formats}
    file.write_text(json.dumps({**description, "artifacts": artifacts}))
    monkeypatch.setattr(node.module, "host_facts", lambda: {"arch": arch, "driver": "", "gpus": []})
    assert node.run("--output", "e.json", "--rounds", "3") == 0
    assert json.loads((node.folder / "e.json").read_text())["programs"] == []
    assert f"nothing is measured: {reason}" in capsys.readouterr().err


def test_bare_programs_use_the_loader_and_the_libraries_of_the_image(tmp_path: Path) -> None:
    root = str(tmp_path)
    files = {
        "bin/dynamic": b"\x7fELF....\0/lib64/ld-linux-x86-64.so.2\0",
        "bin/static": b"\x7fELF....\0",
        "etc/ld.so.cache": b"ld.so-1.7.0\0..glibc-ld.so.cache1.1..libc.so.6\0"
        b"/usr/lib/x86_64-linux-gnu/libc.so.6\0libcudart.so.13\0"
        b"/usr/local/cuda/lib/libcudart.so.13\0/usr/lib/x86_64-linux-gnu/libm.so.6\0",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    module = program()
    folders = (
        *("/usr/lib/x86_64-linux-gnu", "/usr/local/cuda/lib"),
        *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
    )
    assert module.bare_argv(root, ["/bin/dynamic", "4"], {}) == [
        f"{root}/lib64/ld-linux-x86-64.so.2",
        "--library-path",
        ":".join(f"{root}{folder}" for folder in folders),
        f"{root}/bin/dynamic",
        "4",
    ]
    assert module.bare_argv(root, ["/bin/static", "/bin/dynamic"], {}) == [
        f"{root}/bin/static",
        f"{root}/bin/dynamic",
    ]


def test_a_real_program_runs_bare_with_absolute_links(tmp_path: Path) -> None:
    """The loader's link is absolute on Debian 12; it stays inside the tree."""
    real = Path("/bin/true").resolve()
    loader = next(path for path in map(Path, LOADERS) if path.exists())
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "opt/compat").mkdir(parents=True)
    (tmp_path / "bin").symlink_to("/usr/lib")
    (tmp_path / loader.parent.name).mkdir()
    shutil.copy(real, tmp_path / "usr/lib/true")
    shutil.copy(loader.resolve(), tmp_path / "usr/lib/loader")
    (tmp_path / str(loader)[1:]).symlink_to("/usr/lib/loader")
    listed = subprocess.run(["ldd", real], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"=> (/\S+)", listed):
        shutil.copy(library, tmp_path / "usr/lib")
    own = {"LD_LIBRARY_PATH": "/usr/lib:/opt/compat:/x/glibc-hwcaps/v3"}
    argv = program().bare_argv(str(tmp_path), ["/bin/true"], own)
    assert argv[0] == f"{tmp_path}/usr/lib/loader"
    assert argv[2].split(":")[0] == f"{tmp_path}/usr/lib"
    assert "compat" not in argv[2]
    assert "hwcaps" not in argv[2]
    assert subprocess.run(argv, check=False).returncode == 0
    (tmp_path / "loop").symlink_to("/loop")
    with pytest.raises(OSError, match="symbolic links"):
        program().inside(str(tmp_path), "/loop")
    done = program().run_bare(str(tmp_path), {"argv": ["/absent"], "timeout_s": 9}, {}, "/")
    assert done["status"] == 127
    assert "absent" in done["stderr"]


LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib64/ld64.so.2")


@pytest.mark.parametrize("words", [("--rounds", "-1")])
def test_negative_rounds_are_bad_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        program().options_of([*words])


@pytest.mark.parametrize(
    ("gpu", "seconds", "fault"), [(True, 0.2, "had no GPU for it"), (False, 931, "limit is 900 s")]
)
def test_programs_without_a_gpu_or_over_the_limit_are_refused(
    gpu: bool,
    seconds: float,
    fault: str,
    machine: Machine,  # noqa: F811
    kit: Kit,
) -> None:
    measured = dataclasses.replace(MEASURED, needs_gpu=gpu)
    with_programs(machine.folder / f"kits/{kit.id}.json", measured)
    programs = programs_as_run((10, 10), seconds=seconds)
    times = {"started": now(-1), "finished": now()}
    about = evidence_of(kit, programs=programs, **times)
    with pytest.raises(Refused, match=fault):
        taken(machine, sealed(about))


@pytest.mark.parametrize(
    ("spoiled", "status"), [("none", 0), ("bare", 0), ("unpack", 0), ("artifact", 2)]
)
def test_a_program_that_fails_bare_costs_nothing_else(
    spoiled: str, status: int, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_programs(node.folder / "kit/kit.json", MEASURED)
    host = {"arch": "x86_64", "driver": "", "gpus": list[str]()}
    monkeypatch.setattr(node.module, "host_facts", lambda: host)

    def truncated(*_: object) -> None:
        raise EOFError("truncated")

    if spoiled == "unpack":
        monkeypatch.setattr(node.module, "unpack", truncated)
    if spoiled == "artifact":
        (node.folder / "kit/image.tar.gz").write_bytes(b"another")
    if spoiled == "none":
        monkeypatch.setattr(node.module, "bare_argv", lambda *_: ["bare"])
    assert node.run("--output", "e.json", "--rounds", "1") == status
    if status == 0:
        programs = json.loads((node.folder / "e.json").read_text())["programs"]
        ends = {each["bare"]: each["status"] for each in programs}
        bare = {"none": 0, "bare": 127}.get(spoiled)
        assert ends == ({} if bare is None else {True: bare, False: 0})


def test_a_kit_has_the_programs_of_its_image(
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kits, "programs_for_kits", lambda paths: (MEASURED,) if paths else ())
    made = made_kit(machine)
    assert made.programs == (MEASURED,)
