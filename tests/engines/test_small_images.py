"""Defects planted in small images, in each format: caught and named; sound ones are not accused."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import defects_in_containers as defects
import pytest
from harness import ARCHITECTURES, build_images, manifest_of, sample
from small_images import Maker, Small, artifact_of, sound

from builder.model.digests import digest_of_file
from builder.verify.formats import tree_of_artifact

pytestmark = pytest.mark.engines
SEED = 7


@pytest.mark.campaign
@pytest.mark.parametrize("number", sample(range(len(defects.PLANTS)), 3))
def test_a_planted_defect_is_caught_and_named(number: int, small_images: Maker) -> None:
    """Each kind in a random place, for both architectures by turns."""
    plant = defects.PLANTS[number]
    kind, wrong = defects.one(small_images, number, SEED, plant)
    assert not wrong, f"{kind}: {wrong}"


@pytest.mark.campaign
@pytest.mark.parametrize("number", sample(range(6), 1))
def test_a_sound_image_is_not_accused(number: int, small_images: Maker) -> None:
    kind, wrong = defects.one(small_images, number, SEED, None)
    assert (kind, wrong) == ("sound", "")


def an_image(name: str, arch: str = "x86_64") -> Small:
    rng = random.Random(name)
    return dataclasses.replace(sound(arch, 0, rng), identifier=name)


def outcomes(folder: Path) -> dict[str, dict[str, tuple[str, str]]]:
    return {
        name: {one["check"]: (one["outcome"], one["reason"]) for one in found}
        for name, found in manifest_of(folder)["checks"].items()
    }


def test_a_sif_keeps_no_owner_and_the_finding_says_where_they_were_compared(
    small_images: Maker,
) -> None:
    """What docs/checks.md says of owners: an ordinary user packs it, as one owner."""
    image = an_image("owners")
    thing = image.trees["sif"]["srv/certain"]
    assert thing is not None
    lost = dataclasses.replace(thing, gid=0)
    folder = small_images.make(image.with_in("sif", {"srv/certain": lost}))
    assert build_images("verify", folder).status == 0
    _, reason = outcomes(folder)["sif"]["formats-equal"]
    assert reason.endswith("; owners are the same in oci and charliecloud")


@pytest.mark.long(reason="the campaign plants it, too")
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_binary_of_the_other_architecture(arch: str, small_images: Maker) -> None:
    borrowed = small_images.bases[defects.OTHER[arch]].things["usr/bin/true"]
    image = an_image("borrowed", arch).with_everywhere({"usr/local/bin/tool": borrowed})
    folder = small_images.make(image)
    assert build_images("verify", folder).status == 1
    for found in outcomes(folder).values():
        outcome, reason = found["architecture"]
        assert outcome == "failed"
        assert "/usr/local/bin/tool" in reason
        assert defects.OTHER[arch] in reason


def test_an_artifact_that_is_not_the_manifests(small_images: Maker) -> None:
    folder = small_images.make(an_image("replaced"))
    with (folder / "image.sif").open("ab") as file:
        file.write(b"more")
    done = build_images("verify", folder)
    assert done.status == 2
    assert "image.sif: its digest is sha256:" in done.stderr


def test_a_sif_is_hashed_while_its_tree_is_read(small_images: Maker) -> None:
    sif = small_images.make(an_image("hashed")) / "image.sif"
    tree = tree_of_artifact("sif", sif, work=small_images.work, tools=small_images.tools)
    assert tree.artifact == digest_of_file(sif)


def test_a_damaged_artifact_has_an_outcome_and_the_other_formats_go_on(
    small_images: Maker,
) -> None:
    folder = small_images.make(an_image("damaged"))
    tarball = folder / "image.tar.gz"
    tarball.write_bytes(tarball.read_bytes()[:100_000])
    manifest = manifest_of(folder)
    manifest["artifacts"]["charliecloud"] = artifact_of(folder, "charliecloud")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert build_images("verify", folder).status == 1
    found = outcomes(folder)
    assert found["charliecloud"]["architecture"][0] == "failed"
    assert found["charliecloud"]["formats-equal"][1].startswith("charliecloud: ")
    assert found["oci"]["architecture"][0] == found["sif"]["architecture"][0] == "passed"
