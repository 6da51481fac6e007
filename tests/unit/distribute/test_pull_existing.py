"""What is at the output already, and which of several files is taken: nothing is believed."""

from __future__ import annotations

import datetime as dt
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from builder.distribute.pull.artifacts import NAMES, existing_output, tree_on_disk
from builder.distribute.pull.receipts import SCHEMA
from builder.distribute.pull.remote_image import published
from builder.distribute.pull.request import Judged
from builder.model.digests import digest_of_file
from builder.model.errors import BadInput, Refused
from builder.registry import Descriptor, Registry
from builder.registry.manifests import ARTIFACT_TYPES
from builder.trust.policy.evidence import newest_proven
from builder.trust.policy.records import EVIDENCE, Claim, Evidence, Gathered, Image
from builder.trust.policy.site_policy import Policy

IMAGE = "sha256:" + "a1" * 32
TREE = "sha256:" + "7e" * 32
NOW = dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)
SIF = ARTIFACT_TYPES["sif"]


def judged_image(form: str, digest: str, **more: Any) -> Judged:
    """An image as far as its output depends on it; `digest` is that of its file, if it has one."""
    artifact = SimpleNamespace(digest=digest) if form in {"sif", "charliecloud"} else None
    remote = SimpleNamespace(image=SimpleNamespace(digest=IMAGE), environment=("A=b",))
    parts = {
        "request": SimpleNamespace(format=form, reference=SimpleNamespace(tag="")),
        "remote": remote,
        "judgement": SimpleNamespace(tree=TREE),
        "artifact": artifact,
        "source": None,
        "gathered": None,
        **more,
    }
    return Judged(**parts)


def pulled(output: Path, form: str = "sif") -> Judged:
    """A folder as a pull leaves it, and what is expected of it."""
    output.mkdir()
    digest, on_disk, path = IMAGE, "", output / "rootfs"
    if form != "directory":
        path = output / NAMES[form]
        path.write_bytes(b"SIF")
        digest = digest_of_file(path)
    else:
        (path / "ch").mkdir(parents=True)
        (path / "ch/environment").write_text("A=b\n")
        (path / "file").write_text("x")
        on_disk = tree_on_disk(path)
    receipt = {
        "schema": SCHEMA,
        "format": form,
        "digest": digest,
        "image": {"digest": IMAGE},
        "tree": TREE,
        "on_disk": on_disk,
    }
    (output / "receipt.json").write_text(json.dumps(receipt))
    for one in (output, path, output / "receipt.json"):
        one.chmod(0o755)
    return judged_image(form, digest)


def edit(output: Path, **more: Any) -> None:
    file = output / "receipt.json"
    document = json.loads(file.read_text()) | more
    known = {key: value for key, value in document.items() if value is not None}
    file.write_text(json.dumps(known))


def refused(words: str, output: Path, expected: Judged) -> None:
    with pytest.raises(Refused, match=f" {words}") as caught:
        existing_output(output, expected)
    again = "move it away, and pull again"
    hint = (
        again if "changed" in words else "name another folder with --output, or move this one away"
    )
    assert str(caught.value).endswith(f"\n  hint: {hint}")


@pytest.mark.parametrize("form", ["sif", "charliecloud", "directory"])
def test_what_is_whole_is_taken(tmp_path: Path, form: str) -> None:
    expected = pulled(tmp_path / "out", form)
    assert existing_output(tmp_path / "out", expected).digest == expected.digest
    edit(tmp_path / "out", tree="sha256:" + "52" * 32)
    if form == "sif":  # its tree was not read by the pull
        assert existing_output(tmp_path / "out", expected).digest == expected.digest
    else:
        refused("has changed since it was pulled", tmp_path / "out", expected)


@pytest.mark.parametrize("form", ["sif", "charliecloud"])
def test_another_file_of_the_same_image_is_not_the_one(tmp_path: Path, form: str) -> None:
    """Its receipt fits it, and what is judged now is another file."""
    expected = pulled(tmp_path / "out", form)
    other = judged_image(form, "sha256:" + "52" * 32)
    with pytest.raises(BadInput, match=f"the {form} is sha256:"):
        existing_output(tmp_path / "out", other)
    edit(tmp_path / "out", digest=other.digest)
    refused("has changed since it was pulled", tmp_path / "out", other)
    edit(tmp_path / "out", digest=expected.digest)
    (tmp_path / "out" / NAMES[form]).write_bytes(b"evil")
    refused("has changed since it was pulled", tmp_path / "out", expected)


@pytest.mark.parametrize("rubbish", [None, 5, [], {}, "\ud800", "x"])
@pytest.mark.parametrize("key", ["format", "digest", "image", "tree", "on_disk"])
def test_rubbish_in_a_receipt_is_refused(tmp_path: Path, key: str, rubbish: Any) -> None:
    expected = pulled(tmp_path / "out", "directory")
    edit(tmp_path / "out", **{key: rubbish})
    with pytest.raises((BadInput, Refused)):
        existing_output(tmp_path / "out", expected)


@pytest.mark.parametrize(
    ("form", "shown"), [("", "unknown"), ("\x1b[2J", "unknown"), ("oci", "oci")]
)
def test_another_format_is_told(tmp_path: Path, form: str, shown: str) -> None:
    expected = pulled(tmp_path / "out")
    edit(tmp_path / "out", format=form)
    with pytest.raises(BadInput) as raised:
        existing_output(tmp_path / "out", expected)
    told = f"{tmp_path}/out exists: the format is {shown}, not sif"
    assert str(raised.value).splitlines()[0] == told


def test_what_others_own_or_may_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    expected = pulled(output)
    for one in (output, output / "receipt.json", output / "image.sif"):
        one.chmod(0o775)
        refused("is writable by other users, who can change it at any time", output, expected)
        one.chmod(0o755)
    (output / "image.sif").rename(tmp_path / "elsewhere")
    refused("was removed", output, expected)
    (output / "image.sif").symlink_to(tmp_path / "elsewhere")
    refused("is a link", output, expected)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refused("is owned by another user, who can change it at any time", output, expected)


def test_the_environment_is_read_again(tmp_path: Path) -> None:
    """The tree digest leaves it out, and ch-run --set-env starts programs with it."""
    expected = pulled(tmp_path / "out", "directory")
    file = tmp_path / "out/rootfs/ch/environment"
    file.write_text("LD_PRELOAD=/tmp/evil.so\n")
    refused("has changed since it was pulled", tmp_path / "out", expected)
    file.unlink()
    refused("has changed since it was pulled", tmp_path / "out", expected)


@dataclass
class FakeRegistry:
    """What refers to an image, by its digest."""

    documents: dict[str, Any]
    name: str = "registry.example/site/tool"

    def referrers(self, _digest: str, _kind: str) -> tuple[Descriptor, ...]:
        return tuple(Descriptor(media_type="m", digest=one, size=1) for one in self.documents)

    def document(self, target: Descriptor) -> tuple[Descriptor, Any]:
        return target, self.documents[target.digest]


def file_of(*digests: str, subject: str = IMAGE) -> dict[str, Any]:
    layers = [{"mediaType": SIF, "digest": f"sha256:{one * 32}", "size": 1} for one in digests]
    return {"subject": {"digest": subject}, "layers": layers}


def test_what_is_damaged_or_has_many_files_stops_nothing() -> None:
    rubbish: list[Any] = [None, [], {}, {"subject": 5}, {"subject": {"digest": IMAGE}}]
    rubbish += [file_of(*["0b"] * 21), file_of("0c", subject="x"), file_of() | {"layers": 5}]
    many = {str(number): one for number, one in enumerate(rubbish * 5)}
    registry = FakeRegistry({**many, "the last": file_of("51")})
    found = published(cast("Registry", registry), IMAGE, "sif")
    assert [one.digest for one in found] == ["sha256:" + "51" * 32]
    most: dict[str, Any] = {str(number): None for number in range(1000)}
    assert published(cast("Registry", FakeRegistry(most)), IMAGE, "sif") == ()
    with pytest.raises(Refused, match="1001 sif files refer to it; the limit is 1000"):
        published(cast("Registry", FakeRegistry({**most, "more": None})), IMAGE, "sif")


def test_of_several_files_the_one_of_the_newest_evidence_is_taken() -> None:
    first, second, unproven = "sha256:51", "sha256:52", "sha256:53"
    proofs = tuple(evidence(one, day) for day, one in enumerate((first, second), 1))
    image = Image(digest=IMAGE, architecture="x86_64", asked="x86_64")
    gathered = Gathered(reference="x", format="sif", now=NOW, image=image, proofs=proofs)
    policy = Policy(keys=())
    assert newest_proven(policy, gathered, [first, second, unproven]) == second
    assert newest_proven(policy, gathered, [unproven, second, first]) == second
    assert newest_proven(policy, gathered, [unproven, first]) == first
    assert newest_proven(policy, gathered, [unproven]) == unproven
    assert newest_proven(policy, gathered, []) == ""


def evidence(artifact: str, day: int) -> Claim:
    time = dt.datetime(2026, 11, day, tzinfo=dt.timezone.utc)
    content = Evidence(
        started=time,
        finished=time,
        format="sif",
        runner="apptainer",
        launcher="x",
        emulated=False,
        architecture="x86_64",
        outcomes={"environment": "passed"},
    )
    return Claim(kind=EVIDENCE, subjects=(IMAGE, artifact), key="site.pub", content=content)
