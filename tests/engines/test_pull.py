"""Pulling from a real registry, docker-registry on loopback, as a site does."""

from __future__ import annotations

import json
import stat

import pytest
from faulty_proxy import Proxy
from harness import build_images, passed
from pulling import known_images, left_behind, one_registry, proxy, pull, site
from registry_site import HERE, Content, Site

from builder.artifacts.oci import read_layout
from builder.model.digests import digest_of_file

pytestmark = pytest.mark.engines
__all__ = ["known_images", "one_registry", "proxy", "site"]  # fixtures
FORMATS = {
    "oci": "image.oci",
    "sif": "image.sif",
    "charliecloud": "image.tar.gz",
    "directory": "rootfs",
}


@pytest.mark.parametrize("artifact_format", FORMATS)
def test_a_proven_image_is_pulled(site: Site, artifact_format: str) -> None:
    published = site.publish()
    done = passed(pull(site, artifact_format, "--explain"))
    out = site.place / "out"
    path = out / FORMATS[artifact_format]
    assert done.stdout.splitlines()[-1] == str(path)
    assert sorted(one.name for one in out.iterdir()) == sorted([path.name, "receipt.json"])
    assert left_behind(site) == ["out"]
    receipt = json.loads((out / "receipt.json").read_text())
    assert receipt["image"]["digest"] == published.image
    results = {one["rule"]: one["result"] for one in receipt["rules"]}
    assert "refused" not in results.values()
    assert (results["tree"] == "not asked") == (artifact_format == "sif")
    if artifact_format == "oci":
        assert read_layout(path).digest == published.image
    elif artifact_format == "directory":
        assert (path / "bin/tool").read_text() == "#!/bin/sh\necho hello\n"
        assert stat.S_IMODE((path / "bin/su").stat().st_mode) == 0o755
        assert not (path / "etc/gone").exists()
        assert (path / "ch/environment").read_text() == "PATH=/bin\nA=b c\n"
        assert "setuid" in done.stderr
    else:
        assert digest_of_file(path) == published.artifacts[artifact_format]


def test_what_is_there_and_whole_is_left_alone(site: Site) -> None:
    site.publish()
    assert pull(site, "directory").status == 0
    again = passed(pull(site, "directory"))
    assert "already there, and complete" in again.stderr
    (site.place / "out/rootfs/etc/new").write_text("changed")
    changed = pull(site, "directory")
    assert changed.status == 5
    assert "changed since" in changed.stderr
    assert pull(site, "oci").status == 2


def test_several_are_pulled_and_what_they_share_once(site: Site, proxy: Proxy) -> None:
    """One that is refused does not stop the others, and its code is the command's."""
    site.publish(Content(note="first"), tag="first")
    site.publish(Content(note="stranger"), tag="unsigned", proof=False)
    second = site.publish(Content(note="second"), tag="second")
    others = [f"{proxy.host}/site/tool:{tag}" for tag in ("unsigned", "second", "first")]
    done = pull(site, "oci", "--json", also=others, host=proxy.host, name="site/tool:first")
    assert done.status == 5, done.stderr
    assert "tool:unsigned: refused" in done.stderr
    assert left_behind(site) == ["out"]
    names = [f"tool-{tag}-{HERE}-oci" for tag in ("first", "second")]
    assert sorted(one.name for one in (site.place / "out").iterdir()) == names
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one.get("path", "refused") for one in printed] == ["image.oci", "refused", "image.oci"]
    assert printed[2]["tree"] == second.tree
    for layer in second.layers:
        asked = [one for one in proxy.requests if one.endswith(layer)]
        assert len(asked) == 1
    folders = sorted(path.name for path in (site.place / "home/pulls").iterdir())
    assert folders == ["blobs", "last"]


def test_it_runs_as_a_program_and_for_this_very_host(site: Site) -> None:
    site.publish()
    accepting = site.policy("here.yaml", host_contract="ignored")
    passed(
        build_images(
            *("pull", f"{site.registry}/site/tool:1.0", "--format", "directory"),
            *("--policy", accepting, "--output", site.place / "out"),
            env={"BUILD_IMAGES_HOME": str(site.place / "home")},
        )
    )


def test_dry_run_judges_and_brings_nothing(site: Site) -> None:
    published = site.publish()
    done = passed(pull(site, "oci", "--dry-run"))
    assert "✓ passed" in done.stdout
    assert not (site.place / "out").exists()
    assert not (site.place / "home/pulls/blobs").exists()
    del published


def test_an_unsigned_image_is_refused_rule_by_rule(site: Site) -> None:
    site.publish(Content(note="unsigned"), proof=False)
    done = pull(site, "oci", "--json")
    assert done.status == 5
    for rule in ("signature", "evidence", "provenance", "sbom"):
        assert f"✗ refused    {rule}" in done.stderr
    assert {one["rule"] for one in json.loads(done.stdout)["rules"]} >= {"signature", "rollback"}
    assert not (site.place / "out").exists()
    del done


def test_the_receipt_holds_a_case_that_is_judged_the_same(site: Site) -> None:
    site.publish()
    assert pull(site, "sif").status == 0
    case = json.loads((site.place / "out/receipt.json").read_text())["case"]
    (site.place / "cases").mkdir()
    (site.place / "cases/one.json").write_text(json.dumps(case))
    passed(build_images("policy", "test", site.place / "cases", "--policy", site.policy()))
    strict = site.policy("strict.yaml", evidence={"required": ["gpu-compute"]})
    tried = build_images("policy", "test", site.place / "cases", "--policy", strict)
    assert tried.status == 1
    assert "checks: expected passed, got refused: never run: gpu-compute" in tried.stdout


def test_another_architecture_is_refused_and_pulled_for_its_host(site: Site) -> None:
    site.publish(Content(arch="ppc64le"))
    done = pull(site, "oci", "--arch", "ppc64le")
    assert done.status == 5
    assert "host contract" in done.stderr
    assert pull(site, "oci").status == 2
    passed(pull(site, "oci", "--host", site.record("ppc64le")))
