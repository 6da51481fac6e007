"""Metadata of formats are compared: platform, labels, scripts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from made_formats import ENV, SifPart, sif_scripts, write_sif
from samples import a_file, compare_with_golden, tar_bytes
from test_sif import TREE

from builder.artifacts.oci import LayerBlob, blob_path, finish_layout, start_layout
from builder.artifacts.sif import JSON
from builder.artifacts.tree import TreeEntry
from builder.model import FAILED, PASSED
from builder.model.digests import digest_of
from builder.model.planned import OWN_RUNSCRIPT, RUNSCRIPT, TEST, environment_text
from builder.verify.formats import FormatTree, ReadFormats, compared, metadata_faults

VARIABLES = {"PATH": "/bin", "MODE": "a b", "ODD": 'a"b`c`', "of.no-shell": "x"}
# As Apptainer writes it: what a shell cannot set is left out, and ODD, which it would change.
SCRIPT = '#!/bin/sh\nexport PATH="/bin"\nexport MODE="${MODE:-"a b"}"'
CONTRACT = {"schema": "s/v1", "cpu": {"target": "generic"}, "list": ["a", "b"]}
LABELS = {
    "title": "x",
    "build-images.host.schema": "s/v1",
    "build-images.host.cpu.target": "generic",
    "build-images.host.list": "a b",
}
SETTINGS = {
    "Env": [f"{name}={text}" for name, text in VARIABLES.items()],
    "Cmd": ["/bin/bash"],
    "Labels": LABELS,
    "WorkingDir": "/srv",
}


def sif_of(file: Path, objects: Mapping[str, bytes], arch: bytes = b"02") -> Path:
    """A SIF with a file system and JSON objects."""
    parts = [SifPart(kind=JSON, name=name, content=text) for name, text in objects.items()]
    return write_sif(file, [SifPart(content=TREE, arch=arch), *parts])


def layout_of(folder: Path, config: Mapping[str, Any], **more: Any) -> Path:
    start_layout(folder)
    tar = tar_bytes(a_file("f", "x"))
    layer = LayerBlob(diff_id=digest_of(tar), digest=digest_of(tar), size=len(tar))
    blob_path(folder, layer.digest).write_bytes(tar)
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id]}
    finish_layout(folder, {"rootfs": rootfs, **config}, [layer], **more)
    return folder


def sif_objects(files: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, bytes]:
    environment = {f"/{path}": text for path, text in files.items() if path.startswith(ENV)}
    attributes = {
        "labels": json.loads(files[".singularity.d/labels.json"]),
        "runscript": files[".singularity.d/runscript"],
        "test": files[".singularity.d/test"],
        "environment": environment,
    }
    return {
        "oci-config.json": json.dumps(settings).encode(),
        "inspect-metadata.json": json.dumps({"data": {"attributes": attributes}}).encode(),
    }


@dataclasses.dataclass
class Made:
    """An image in three formats, for a test to spoil."""

    config: dict[str, Any]
    settings: dict[str, Any]
    sif: dict[str, str]
    inspected: dict[str, str]
    tarball: str = environment_text(VARIABLES)
    contract: str = json.dumps(CONTRACT)
    sif_arch: bytes = b"02"

    @classmethod
    def sound(cls) -> Made:
        config = {"architecture": "amd64", "os": "linux", "config": dict(SETTINGS)}
        files = sif_scripts(VARIABLES, LABELS)
        return cls(config=config, settings=dict(SETTINGS), sif=files, inspected=dict(files))

    def described(self, folder: Path) -> ReadFormats:
        objects = sif_objects(self.inspected, self.settings)
        contract = {"opt/build-images/host-contract.json": self.contract.encode()}
        variables = {"ch/environment": self.tarball.encode()}
        packed = {path: text.encode(errors="surrogateescape") for path, text in self.sif.items()}
        return ReadFormats(
            arch="x86_64",
            files={
                "oci": layout_of(folder / "oci", self.config),
                "sif": sif_of(folder / "image.sif", objects, self.sif_arch),
                "charliecloud": folder / "image.tar.gz",
            },
            trees={
                "oci": FormatTree(entries={}, contents=contract),
                "sif": FormatTree(entries={}, contents={**packed, **contract}),
                "charliecloud": FormatTree(entries={}, contents={**variables, **contract}),
            },
        )


def test_formats_that_say_the_same_have_no_fault(tmp_path: Path) -> None:
    made = Made.sound()
    for name in ("Singularity", "runscript.help"):
        made.sif[f".singularity.d/{name}"] = "of the definition"
    labels = json.loads(made.sif[".singularity.d/labels.json"])
    text = json.dumps({**labels, "org.label-schema.build-date": "today"})
    made.sif[".singularity.d/labels.json"] = made.inspected[".singularity.d/labels.json"] = text
    assert made.sif[f"{ENV}/10-docker2singularity.sh"] == SCRIPT
    assert metadata_faults(made.described(tmp_path)) == []
    unasked = metadata_faults(made.described(tmp_path), has_checks=False)
    assert unasked == ["sif: unexpected test script: /opt/build-images/run-checks"]
    for name in ("runscript", "test"):
        made.sif[f".singularity.d/{name}"] = made.inspected[f".singularity.d/{name}"] = ""
    assert metadata_faults(made.described(tmp_path)) == []


@pytest.mark.parametrize(
    ("settings", "is_own"),
    [
        ({}, False),
        ({"Cmd": None}, False),
        ({"Cmd": []}, False),
        ({"Cmd": ["/bin/bash", "-l"]}, True),
        ({"Entrypoint": ["/bin/tool"]}, True),
        ({"Entrypoint": [], "Cmd": ["/bin/tool"]}, True),
    ],
)
def test_an_image_that_starts_a_program_has_a_runscript_of_its_own(
    settings: dict[str, Any], is_own: bool, tmp_path: Path
) -> None:
    for script in (RUNSCRIPT, OWN_RUNSCRIPT):
        made = Made.sound()
        made.config["config"].update(settings)
        made.settings.update(settings)
        with_sif(".singularity.d/runscript", f"#!/bin/sh\n{script}")(made)
        is_right = (script == OWN_RUNSCRIPT) is is_own
        faults = [] if is_right else [f"sif: unexpected runscript: {script}"]
        assert metadata_faults(made.described(tmp_path / script.replace("/", "_"))) == faults


def with_settings(**settings: Any) -> Callable[[Made], None]:
    """Another configuration in the OCI layout than the one that was packed."""
    return lambda made: made.config["config"].update(settings)


def with_config(**config: Any) -> Callable[[Made], None]:
    return lambda made: made.config.update(config)


def with_sif(path: str, text: str, *, shown: bool = True) -> Callable[[Made], None]:
    def spoil(made: Made) -> None:
        made.sif[path] = text
        if shown:
            made.inspected[path] = text

    return spoil


def with_variable(made: Made) -> None:
    """A script that sets what it should, unless it is `env` that is started."""
    path = f"{ENV}/90-environment.sh"
    made.sif[path] += '\ncase "$*" in *"env -0"*) ;; *) export MODE=other ;; esac'
    made.inspected[path] = made.sif[path]


CASES: dict[str, tuple[Callable[[Made], object], str]] = {
    "arm64": (with_config(architecture="arm64"), "oci: its configuration is for the architecture"),
    "ppc64": (with_config(architecture="ppc64"), "for the architecture ppc64, expected amd64"),
    "a variant": (
        with_config(variant="v9"),
        "oci: its configuration is for the variant v9 of amd64",
    ),
    "windows": (with_config(os="windows"), "oci: its configuration is for the os windows"),
    "entry point": (with_settings(Entrypoint=["/bin/evil"]), "sif: its Entrypoint is None, but"),
    "command": (with_settings(Cmd=["/bin/evil"]), "sif: its Cmd is ['/bin/bash'], but"),
    "user": (with_settings(User="0"), "sif: its User is None, but '0' in the OCI layout"),
    "a health check": (
        with_settings(Healthcheck={"Test": ["CMD", "/bin/evil"]}),
        "oci: its configuration has Healthcheck, which only Docker supports",
    ),
    "another shell": (with_settings(Shell=["/bin/evil"]), "oci: its configuration has Shell"),
    "a step to come": (with_settings(OnBuild=["RUN evil"]), "oci: its configuration has OnBuild"),
    "volumes": (with_settings(Volumes={"/data": {}}), "sif: its Volumes is None"),
    "ports": (with_settings(ExposedPorts={"80/tcp": {}}), "sif: its ExposedPorts is None, but"),
    "a signal": (with_settings(StopSignal="SIGKILL"), "sif: its StopSignal is None, but 'SIGKILL'"),
    "directory": (with_settings(WorkingDir="/"), "sif: its WorkingDir is '/srv'"),
    "a label": (
        with_settings(Labels={**LABELS, "title": "y"}),
        "sif: its labels differ from those of the OCI layout: title",
    ),
    "a label of the contract": (
        with_settings(Labels={**LABELS, "build-images.host.cpu.target": "zen4"}),
        "oci: labels differ from /opt/build-images/host-contract.json: build-images.host.cpu",
    ),
    "labels of the contract in the SIF": (
        with_sif(".singularity.d/labels.json", json.dumps({"title": "x"})),
        "sif: labels differ from /opt/build-images/host-contract.json",
    ),
    "another contract": (
        lambda made: setattr(made, "contract", json.dumps({**CONTRACT, "kernel": "6.0"})),
        "oci: labels differ from /opt/build-images/host-contract.json: build-images.host.kern",
    ),
    "rubbish in the contract": (
        lambda made: setattr(made, "contract", "{"),
        "/opt/build-images/host-contract.json is not a host contract",
    ),
    "runscript": (
        with_sif(".singularity.d/runscript", "#!/bin/sh\nexec /bin/evil"),
        "sif: unexpected runscript: exec /bin/evil",
    ),
    "a runscript of another interpreter": (
        with_sif(".singularity.d/runscript", f"#!/usr/bin/env -S sh -c 'exit 0'\n{RUNSCRIPT}"),
        "sif: /.singularity.d/runscript does not begin with #!/bin/sh",
    ),
    "a test script of another interpreter": (
        with_sif(".singularity.d/test", f"#!/bin/true\n{TEST}"),
        "sif: /.singularity.d/test does not begin with #!/bin/sh",
    ),
    "a runscript in no charset": (
        with_sif(".singularity.d/runscript", "#!/bin/sh\nexec \udcff", shown=False),
        "sif: unexpected runscript: exec \ufffd",
    ),
    "test": (
        with_sif(".singularity.d/test", "#!/bin/sh\ntrue"),
        "sif: unexpected test script: true",
    ),
    "an environment that behaves": (with_variable, "does not set exactly the image's"),
    "a variable less": (
        with_sif(
            f"{ENV}/10-docker2singularity.sh",
            '#!/bin/sh\nexport PATH="/bin"\nexport A=1\nexport B=2',
        ),
        "10-docker2singularity.sh does not set exactly",
    ),
    "no variables in the SIF": (
        lambda made: made.sif.pop(f"{ENV}/10-docker2singularity.sh"),
        "10-docker2singularity.sh does not set exactly the image's variables: []",
    ),
    "no settings": (
        lambda made: made.config.pop("config"),
        "sif: its Cmd is ['/bin/bash'], but None in the OCI layout",
    ),
    "a script more": (
        with_sif(f"{ENV}/91-more.sh", "true"),
        "91-more.sh is a file that Apptainer does not write",
    ),
    "a library more": (
        with_sif(".singularity.d/libs/libmpi.so.40", "x"),
        "sif: /.singularity.d/libs/libmpi.so.40 is a file that Apptainer does not write",
    ),
    "a script of Apptainer's own that does more": (
        with_sif(f"{ENV}/94-appsbase.sh", "export LD_PRELOAD=/x"),
        "94-appsbase.sh differs from the one that Apptainer (1.0 to 1.5) writes",
    ),
    "an action that does more": (
        with_sif(".singularity.d/actions/exec", "#!/bin/sh\nexec /bin/evil"),
        "actions/exec differs from the one that Apptainer (1.0 to 1.5) writes",
    ),
    "what inspect shows": (
        with_sif(".singularity.d/runscript", f"#!/bin/sh\n# x\n{RUNSCRIPT}\ntrue", shown=False),
        "runscript in `apptainer inspect` differs from that in the image",
    ),
    "what inspect shows of the test": (
        with_sif(".singularity.d/test", "#!/bin/sh\ntrue", shown=False),
        "test in `apptainer inspect` differs from that in the image",
    ),
    "what inspect shows of the environment": (
        with_sif(f"{ENV}/90-environment.sh", "#!/bin/sh\ntrue", shown=False),
        "90-environment.sh in `apptainer inspect` differs from that in the image",
    ),
    "what inspect shows of labels": (
        with_sif(".singularity.d/labels.json", json.dumps({"title": "x"}), shown=False),
        "labels in `apptainer inspect` differ from those in the image",
    ),
    "the architecture of the SIF": (
        lambda made: setattr(made, "sif_arch", b"06"),
        "sif: its file system is for ppc64le, expected x86_64",
    ),
    "the tarball's variables": (
        lambda made: setattr(made, "tarball", "PATH=/bin\n"),
        "charliecloud: /ch/environment does not have the variables of the image",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_format_says_alone_is_a_fault(name: str, tmp_path: Path) -> None:
    spoil, fault = CASES[name]
    made = Made.sound()
    spoil(made)
    found = metadata_faults(made.described(tmp_path))
    assert any(fault in one for one in found), found


def test_all_faults_of_what_formats_say(tmp_path: Path) -> None:
    lines = []
    for number, (name, (spoil, _)) in enumerate(CASES.items()):
        made = Made.sound()
        spoil(made)
        lines += [f"# {name}", *metadata_faults(made.described(tmp_path / str(number)))]
    compare_with_golden("\n".join([*lines, ""]), "verify/metadata.txt")


@pytest.mark.parametrize(("text", "version"), [("", "None"), ('{"imageLayoutVersion": "9"}', "9")])
def test_a_layout_is_of_the_version_that_is_read(text: str, version: str, tmp_path: Path) -> None:
    image = Made.sound().described(tmp_path)
    (image.files["oci"] / "oci-layout").unlink()
    if text:
        (image.files["oci"] / "oci-layout").write_text(text)
    assert metadata_faults(image) == [
        f"oci: its file oci-layout says version {version}, expected 1.0.0"
    ]


@pytest.mark.parametrize("text", [b"{", b"[]", b"{}"])
def test_what_a_sif_does_not_say_is_not_compared(text: bytes, tmp_path: Path) -> None:
    """As SIFs of a definition, and of other versions of Apptainer."""
    image = Made.sound().described(tmp_path)
    sif_of(image.files["sif"], {"oci-config.json": text, "inspect-metadata.json": text})
    assert metadata_faults(image) == []


def test_what_the_header_of_a_sif_says_is_compared(tmp_path: Path) -> None:
    image = Made.sound().described(tmp_path)
    data = image.files["sif"].read_bytes()
    assert data[45:47] == b"02"
    first = b"#!/bin/evil\n".ljust(32, b"\0")
    image.files["sif"].write_bytes(first + data[32:45] + b"06" + data[47:])
    assert metadata_faults(image) == [
        "sif: its first line is '#!/bin/evil', expected '#!/usr/bin/env run-singularity'",
        "sif: its header is for ppc64le, but its file system is for x86_64",
    ]


def test_what_a_layout_says_of_its_blobs_is_compared(tmp_path: Path) -> None:
    image = Made.sound().described(tmp_path)
    index = json.loads((tmp_path / "oci/index.json").read_text())
    index["manifests"][0]["size"] += 1
    index["manifests"][0]["platform"] = {"architecture": "arm64", "os": "linux"}
    (tmp_path / "oci/index.json").write_text(json.dumps(index))
    found = metadata_faults(image)
    assert any("oci: its index is for the architecture arm64" in one for one in found)
    assert any(" bytes, but " in one for one in found)
    assert len(found) == 2


def test_a_layer_of_another_kind_and_an_annotation_that_contradicts(tmp_path: Path) -> None:
    made = Made.sound()
    image = made.described(tmp_path)
    layout_of(tmp_path / "oci", made.config, annotations={"title": "another"})
    blobs = tmp_path / "oci/blobs/sha256"
    [manifest] = [one for one in blobs.iterdir() if b"schemaVersion" in one.read_bytes()]
    text = manifest.read_text().replace("v1.tar", "v1.tar+gzip")
    (blobs / digest_of(text.encode()).partition(":")[2]).write_text(text)
    index = json.loads((tmp_path / "oci/index.json").read_text())
    index["manifests"][0].update(digest=digest_of(text.encode()), size=len(text))
    (tmp_path / "oci/index.json").write_text(json.dumps(index))
    found = metadata_faults(image)
    assert any("but its descriptor says" in one for one in found)
    assert any("the annotation title is 'another', but the label is 'x'" in one for one in found)


def test_one_format_alone_is_held_against_its_contract(tmp_path: Path) -> None:
    image = Made.sound().described(tmp_path)
    for name, tree in image.trees.items():
        assert metadata_faults(dataclasses.replace(image, trees={name: tree})) == []
    contents = {**image.trees["sif"].contents, ".singularity.d/labels.json": b"{}"}
    spoilt = {"sif": FormatTree(entries={}, contents=contents)}
    found = metadata_faults(dataclasses.replace(image, trees=spoilt))
    assert any("labels differ from" in one for one in found)
    lacking = dataclasses.replace(image, trees={"charliecloud": FormatTree(entries={})})
    fault = "charliecloud: /ch/environment does not have the variables of the image"
    assert metadata_faults(lacking) == [fault]


def test_formats_with_equal_trees_fail_for_what_they_say(tmp_path: Path) -> None:
    made = Made.sound()
    assert compared(made.described(tmp_path), has_checks=True).outcome == PASSED
    made.sif[".singularity.d/runscript"] = "#!/bin/sh\nexec /bin/evil"
    outcome = compared(made.described(tmp_path), has_checks=True)
    assert outcome.outcome == FAILED
    inspected = "runscript in `apptainer inspect` differs from that in the image"
    faults = ["sif: unexpected runscript: exec /bin/evil", f"sif: {inspected}"]
    assert (outcome.reason, outcome.output) == ("; ".join(faults), "\n".join(faults))
    image = made.described(tmp_path)
    entries = {"f": TreeEntry(path="f", kind="file", mode=0o644)}
    other = dataclasses.replace(image.trees["oci"], entries=entries)
    image = dataclasses.replace(image, trees={**image.trees, "oci": other})
    unequal = [f"oci and {name}: /f: only in the first" for name in ("sif", "charliecloud")]
    both = compared(image, has_checks=True)
    assert both.reason.startswith("; ".join([*unequal, *faults][:2]))
    assert both.reason.endswith("; ".join(["", *faults]))
    assert both.output.splitlines()[-2:] == faults
