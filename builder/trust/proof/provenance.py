"""Provenance: what an image was made from, and by what. SLSA provenance v1.

https://slsa.dev/spec/v1.0/provenance. What `BUILD_TYPE` means is told in docs/security.md. No name
of a host, of a mirror or of a local folder is in it, nor what may be a secret in a URL.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from urllib.parse import urlsplit, urlunsplit

from builder import __version__
from builder.model.errors import BadInput
from builder.model.manifest import ImageInputs, Manifest, UsedBase
from builder.model.predicates import SLSA, STATEMENT
from builder.trust.proof.envelopes import as_bytes

BUILD_TYPE = "pkg:generic/build-images#image/v1"
PROGRAM = "pkg:generic/build-images"


def builder_of(environment: Mapping[str, str]) -> str:
    """What built: the workflow of GitHub or the project of GitLab, else this program alone.

    A program that runs wherever somebody starts it can claim nothing: SLSA Build level 1.
    """
    if server := environment.get("GITHUB_SERVER_URL"):
        return f"{server}/{environment.get('GITHUB_WORKFLOW_REF', '')}"
    if environment.get("GITLAB_CI"):
        return environment.get("CI_PROJECT_URL", PROGRAM)
    return f"{PROGRAM}@{__version__}"


def provenance(manifest: Manifest, *, builder_id: str) -> bytes:
    """The statement on an image, out of its manifest.json; subjects are all of its artifacts.

    Raises `BadInput` where the manifest is of an earlier version, which did not note all of it.
    """
    try:
        made = _statement(manifest, builder_id)
    except (TypeError, AttributeError, ValueError) as error:
        raise BadInput(
            f"{manifest.image}: its manifest does not say what it was made from",
            hint="build it again with this version: build-images --image IDENTIFIER",
        ) from error
    return as_bytes(made)


def _statement(manifest: Manifest, builder_id: str) -> dict[str, object]:
    inputs, name = manifest.inputs, manifest.image
    if not inputs.files or not inputs.base.name or inputs.sources is None or inputs.specs is None:
        raise ValueError(name)
    cell = {key: value for key, value in sorted(asdict(manifest.cell).items()) if value != ""}
    return {
        "_type": STATEMENT,
        "subject": [
            {"name": f"{name}/{form}", "digest": _digest(one.digest)}
            for form, one in sorted(manifest.artifacts.items())
        ],
        "predicateType": SLSA,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"image": name, "cell": cell, "engine": manifest.engine},
                "internalParameters": {
                    "contentKey": manifest.content_key,
                    "emulated": manifest.was_built_emulated,
                    "nativeTools": inputs.native_tools,
                    "sourceDateEpoch": inputs.source_date_epoch,
                },
                "resolvedDependencies": list(_dependencies(inputs)),
            },
            "runDetails": {
                "builder": {
                    "id": builder_id,
                    "version": {"build-images": inputs.version, "compiler": inputs.compiler}
                    | dict(manifest.tools),
                    "builderDependencies": [
                        {
                            "uri": f"{PROGRAM}@{inputs.version}",
                            "digest": _digest(inputs.program),
                        }
                    ],
                },
                "metadata": {"startedOn": _timestamp(manifest.started)},
                "byproducts": [
                    {"name": path, "digest": _digest(digest)}
                    for path, digest in sorted(inputs.specs.items())
                ],
            },
        },
    }


def _dependencies(inputs: ImageInputs) -> Iterator[dict[str, object]]:
    """The materials: the files that declare the image, its base, its sources."""
    for path, digest in sorted(inputs.files.items()):
        yield {"name": path, "digest": _digest(digest)}
    yield _base(inputs.base)
    for url, digest in sorted((inputs.sources or {}).items()):
        yield {"uri": _public(url), "digest": _digest(digest)}


def _base(base: UsedBase) -> dict[str, object]:
    """The base image: one that was made here by its digest, others as their reference has it."""
    name = f"base image {base.name}"
    if base.digest:
        # Its packages are those that the distribution had when it was made.
        notes = {"made": base.made, "key": base.key}
        return {"name": name, "digest": _digest(base.digest), "annotations": notes}
    reference, _, digest = base.image.partition("@")
    repository, _, tag = reference.rpartition("/")[2].partition(":")
    version = f"@{digest.replace(':', '%3A')}" if digest else ""
    found: dict[str, object] = {
        "name": name,
        "uri": f"pkg:oci/{repository}{version}" + (f"?tag={tag}" if tag else ""),
    }
    return {**found, "digest": _digest(digest)} if digest else found


def _public(url: str) -> str:
    """A URL without a user, a password or a query: those may be secrets."""
    parts = urlsplit(url)
    if not parts.netloc:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def _digest(text: str) -> dict[str, str]:
    algorithm, _, value = text.partition(":")
    if algorithm != "sha256" or not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(text)
    return {algorithm: value}


def _timestamp(text: str) -> str:
    """A time as in-toto writes it: in UTC, to the second, with a Z."""
    found = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 knows no Z
    return found.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
