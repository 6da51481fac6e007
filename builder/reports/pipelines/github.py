"""GitHub Actions: https://docs.github.com/en/actions/reference/workflow-syntax-for-github-actions"""

from __future__ import annotations

import re
from collections.abc import Mapping

from builder.reports.pipelines.jobs import ENVIRONMENT, Job, Pipeline, Publication, as_yaml

# https://docs.github.com/en/actions/reference/github-hosted-runners-reference: none is ppc64le.
RUNNERS: Mapping[str, str] = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
# Actions by commit: a tag may move. The version is told behind it.
_CHECKOUT = "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683"
_UPLOAD = "actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02"
_DOWNLOAD = "actions/download-artifact@d3f86a106a0bac45b974a628896c90dbdf5c8093"
_VERSIONS = {_CHECKOUT: "v4.2.2", _UPLOAD: "v4.6.2", _DOWNLOAD: "v4.3.0"}
# The set-up installs Debian's packages; user namespaces and binfmt_misc need the privilege.
_CONTAINER = {"image": "debian:13", "options": "--privileged"}
_STEP_CHECKOUT = {"uses": _CHECKOUT, "with": {"persist-credentials": False}}
# Also where an image failed: `publish` refuses it, and attaches the evidence of that.
_PUBLISHES = (
    "${{ !cancelled() && github.event_name != 'pull_request' && github.ref_name == github.event"
    ".repository.default_branch && vars.BUILD_IMAGES_REGISTRY != '' }}"
)
_LOGIN = ("BUILD_IMAGES_REGISTRY_USER", "BUILD_IMAGES_REGISTRY_PASSWORD")
_KEY = ("COSIGN_PRIVATE_KEY", "COSIGN_PASSWORD")


def github(pipeline: Pipeline) -> str:
    """Return the text of a workflow, for `.github/workflows/images.yml`."""
    jobs = {_key(job.image): _job(job) for job in pipeline.jobs}
    jobs |= {
        f"publish-{_key(publication.name)}": _publication(publication, pipeline)
        for publication in pipeline.publications
    }
    document = {
        "name": "images",
        "on": {
            "push": {"branches": ["main"]},
            "pull_request": {},
            "schedule": [{"cron": "17 2 * * *"}],
            "workflow_dispatch": {},
        },
        "permissions": {"contents": "read"},
        "concurrency": {
            "group": "images-${{ github.ref }}",
            "cancel-in-progress": "${{ github.event_name == 'pull_request' }}",
        },
        "defaults": {"run": {"shell": "bash"}},
        "jobs": jobs,
    }
    text = as_yaml(pipeline, document).replace("\n'on':\n", "\non:\n")
    for action, version in _VERSIONS.items():
        text = text.replace(f"{action}\n", f"{action} # {version}\n")
    return text


def _key(text: str) -> str:
    """https://docs.github.com/en/actions/reference/workflow-syntax-for-github-actions#jobsjob_id"""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)


def _set_up(command: str) -> dict[str, object]:
    return {"name": "Set up", "run": command}


def _job(job: Job) -> dict[str, object]:
    build = {
        "name": "Build and verify",
        "env": {"REFRESH": "${{ github.event_name == 'schedule' && '1' || '' }}"},
        "run": job.build,
    }
    image = {
        "if": "${{ !cancelled() }}",  # of a failure: its log, and the evidence that says so
        "uses": _UPLOAD,
        "with": {
            "name": job.image,
            "path": f"out/{job.image}",
            "compression-level": 0,
            "retention-days": 3,
            "if-no-files-found": "error",
        },
    }
    return {
        "name": f"{job.image}{' (emulated)' if job.emulated else ''}",
        "runs-on": job.runner,
        "container": _CONTAINER,
        "timeout-minutes": job.minutes,
        "steps": [_STEP_CHECKOUT, _set_up("ci/retry ci/setup images"), build, image],
    }


def _publication(publication: Publication, pipeline: Pipeline) -> dict[str, object]:
    secrets = _LOGIN if pipeline.is_keyless else (*_LOGIN, *_KEY)
    # The token by which GitHub tells Sigstore's authority which workflow of which repository it is.
    rights = {"contents": "read", "id-token": "write"}
    images = [
        {
            "continue-on-error": True,  # of what could not be built there is nothing
            "uses": _DOWNLOAD,
            "with": {"name": job.image, "path": f"out/{job.image}"},
        }
        for job in publication.jobs
    ]
    publish = {
        "name": "Publish",
        "env": {
            "REGISTRY": "${{ vars.BUILD_IMAGES_REGISTRY }}",
            **{name: f"${{{{ secrets.{name} }}}}" for name in secrets},
        },
        "run": pipeline.publishing(publication, "$REGISTRY"),
    }
    return {
        "name": f"publish {publication.name}",
        "needs": [_key(job.image) for job in publication.jobs],
        "if": _PUBLISHES,
        "environment": ENVIRONMENT,
        **({"permissions": rights} if pipeline.is_keyless else {}),
        "runs-on": publication.runner,
        "container": _CONTAINER,
        "timeout-minutes": 60,
        "steps": [_STEP_CHECKOUT, *images, _set_up(pipeline.setup), publish],
    }
