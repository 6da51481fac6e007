"""Output folders of images as the main job leaves them, small, with whatever texts a test wants."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from manifest_samples import document

FORMATS = {"oci": "image.oci", "sif": "image.sif", "charliecloud": "image.tar.gz"}
EVIL = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>\"'&{{7*7}}"


def digest(character: str) -> str:
    return "sha256:" + character * 64


def image_folder(
    out: Path,
    *,
    recipe: str = "hpc-base",
    arch: str = "x86_64",
    cuda: str = "none",
    mpi: str = "openmpi5.0",
    parents: tuple[str, ...] = (),
    about: str = "Compilers and an MPI",
    text: str = "4 ranks on 1 host",
    packages: tuple[str, ...] = ("bash", "zlib1g"),
    result: str = "PASSED",
    digests: dict[str, str] | None = None,
    version: str = "1.0",
    labels: dict[str, str] | None = None,
) -> Path:
    """Write one image's folder; `digests` are those that its evidence and SBOM are about.

    `version` is that of its packages. With `labels`, its contents were kept.
    """
    parts = [recipe, "1.0", "debian13"]
    parts += [f"cuda{cuda}"] * (cuda != "none") + [mpi] * (mpi != "none") + [arch]
    name = "-".join(parts)
    folder = out / name
    (folder / "evidence").mkdir(parents=True)
    own = {one: digest(character) for one, character in zip(FORMATS, "abc", strict=True)}
    told = digests or own
    runs = {one: evidence(one, name, told, text, result, arch) for one in FORMATS}
    reasons = {"formats-equal": "the same 9 paths", "environment": "PATH", "mpi": text}
    checks = [
        {"check": check, "outcome": "passed", "reason": reason, "duration_s": 0.9}
        for check, reason in reasons.items()
    ]
    if result == "WARNED":
        checks.append({"check": "verbs", "outcome": "skipped", "reason": "no adapter here"})
    artifact = {"size": 167_941_640, "tree_digest": digest("d"), "duration_s": 6.5}
    manifest = {
        "image": name,
        "about": about,
        "cell": {
            "recipe": recipe,
            "cuda": cuda,
            "mpi": mpi,
            "arch": arch,
            "flavour": "runtime",
            "cpu": "generic",
        },
        "content_key": "0" * 64,
        "artifacts": {
            form: {**artifact, "path": path, "digest": own[form]} for form, path in FORMATS.items()
        },
        "checks": dict.fromkeys(FORMATS, checks),
        "formats_equal": True,
        "inputs": {
            "recipes": [{"name": each, "version": "1.0"} for each in (*parents, recipe)],
            "base": {"name": "debian13", "digest": digest("e")},
        },
        "sbom": "sbom.cdx.json",
        "started": "2026-01-01T09:12:40Z",
        "tools": {"buildah": "1.28.2"},
        "emulated": arch != "x86_64",
        "evidence": [f"evidence/{one}.json" for one in FORMATS],
    }
    write(folder / "manifest.json", document(manifest))
    for one, statement in runs.items():
        write(folder / "evidence" / f"{one}.json", statement)
    write(folder / "sbom.cdx.json", sbom(told["oci"], packages, version))
    if labels:
        contents = {"digest": own["oci"], "labels": labels, "files": {"etc": ["dir", 0, 0, "", ""]}}
        (folder / "contents.json.gz").write_bytes(gzip.compress(json.dumps(contents).encode()))
    (folder / "Dockerfile").write_text("FROM scratch\n")
    return folder


def evidence(
    name: str, image: str, digests: dict[str, str], text: str, result: str, arch: str
) -> dict[str, Any]:
    host = {"arch": "x86_64", "cpu": text, "os": "Debian 12", "gpus": []}
    run = {
        "started": "2026-01-01T09:19:00+00:00",
        "finished": "2026-01-01T09:20:00+00:00",
        "runner": {"name": "apptainer", "version": "1.4.5"},
        "host": host,
        "emulated": arch != "x86_64",
    }
    passed, skipped, failed = (
        ["formats-equal", "environment", "mpi"],
        ["verbs"] if result == "WARNED" else [],
        [f"of {name}"] if result == "FAILED" else [],
    )
    found = {"passed": passed, "skipped": skipped, "failed": failed}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": f"{image}/{one}", "digest": {"sha256": told.removeprefix("sha256:")}}
            for one, told in {**digests, "tree": digest("d")}.items()
        ],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": result,
            "configuration": [
                {"name": "run", "annotations": run},
                *(
                    {"name": check, "annotations": {"outcome": outcome}}
                    for outcome, checks in found.items()
                    for check in checks
                ),
            ],
            "passedTests": passed,
            "warnedTests": skipped,
            "failedTests": failed,
        },
    }


def sbom(digest_: str, packages: tuple[str, ...], version: str) -> dict[str, Any]:
    return {
        "bomFormat": "CycloneDX",
        "metadata": {
            "component": {
                "hashes": [{"alg": "SHA-256", "content": digest_.removeprefix("sha256:")}]
            }
        },
        "components": [
            {
                "name": one,
                "version": version,
                "type": "library",
                "purl": f"pkg:deb/debian/{one}@1.0",
                "licenses": [{"license": {"id": "GPL-3.0-or-later"}}],
            }
            for one in packages
        ],
    }


def add_contract(folder: Path, **needs: Any) -> None:
    """Add the host contract of an image for the architecture at the end of its name."""
    arch = folder.name.rpartition("-")[2]
    contract = {
        "schema": "build-images/host-contract/v1",
        "image": folder.name,
        "architecture": arch,
        "cpu": {"target": "generic"},
        "kernel": "3.2.0",
        "glibc": "2.41",
        **needs,
    }
    (folder / "files").mkdir()
    write(folder / "files/host-contract.json", contract)


def write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document))
