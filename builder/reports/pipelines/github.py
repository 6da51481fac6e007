"""GitHub Actions: https://docs.github.com/en/actions/reference/workflow-syntax-for-github-actions"""

from __future__ import annotations

from collections.abc import Mapping

from builder.reports.pipelines.jobs import ENVIRONMENT, PROGRAM, Job, Pipeline, Publication, as_yaml

# https://docs.github.com/en/actions/reference/github-hosted-runners-reference: none is ppc64le.
RUNNERS: Mapping[str, str] = {"x86_64": "ubuntu-24.04", "aarch64": "ubuntu-24.04-arm"}
# Actions by commit: a tag may move. The version is told behind it.
_CHECKOUT = "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683"
_UPLOAD = "actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02"
_DOWNLOAD = "actions/download-artifact@d3f86a106a0bac45b974a628896c90dbdf5c8093"
_VERSIONS = {_CHECKOUT: "v4.2.2", _UPLOAD: "v4.6.2", _DOWNLOAD: "v4.3.0"}
# The set-up installs Debian's packages; user namespaces and binfmt_misc need the privilege.
_CONTAINER = {"image": "debian:13", "options": "--privileged"}
_SETUP = {"name": "Set up", "run": "ci/retry ci/setup images"}
# Also where an image failed: `publish` refuses it, and attaches the evidence of that.
_PUBLISHES = (
    "${{ !cancelled() && github.event_name != 'pull_request' && github.ref_name == github.event"
    ".repository.default_branch && vars.BUILD_IMAGES_REGISTRY != '' }}"
)
_LOGIN = ("BUILD_IMAGES_REGISTRY_USER", "BUILD_IMAGES_REGISTRY_PASSWORD")
_KEY = ("COSIGN_PRIVATE_KEY", "COSIGN_PASSWORD")


def github(pipeline: Pipeline) -> str:
    """The text of a workflow, for `.github/workflows/images.yml`."""
    jobs = {one.key: _job(one) for one in pipeline.jobs}
    jobs |= {one.key: _publication(one, pipeline) for one in pipeline.publications}
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


def _checkout() -> dict[str, object]:
    return {"uses": _CHECKOUT, "with": {"persist-credentials": False}}


def _job(job: Job) -> dict[str, object]:
    folder = f"out/{job.image}"
    build = {
        "name": "Build and verify",
        # At night with today's packages: what did not change comes out with the same digest.
        "env": {"REFRESH": "${{ github.event_name == 'schedule' && '1' || '' }}"},
        "run": f"ci/retry {PROGRAM} {job.selectors} ${{REFRESH:+--refresh}}",
    }
    image = {
        "if": "${{ !cancelled() }}",  # one that fails: its log, and the evidence that says so
        "uses": _UPLOAD,
        "with": {
            "name": job.image,
            "path": folder,
            "compression-level": 0,
            "retention-days": 3,
            "if-no-files-found": "error",
        },
    }
    return {
        "name": job.title,
        "runs-on": job.runner,
        "container": dict(_CONTAINER),
        "timeout-minutes": job.minutes,
        "steps": [_checkout(), dict(_SETUP), build, image],
    }


def _publication(one: Publication, pipeline: Pipeline) -> dict[str, object]:
    secrets = _LOGIN if pipeline.is_keyless else (*_LOGIN, *_KEY)
    # The token by which GitHub tells Sigstore's authority which workflow of which repository it is.
    rights = {"contents": "read", "id-token": "write"}
    images = [
        {
            "continue-on-error": True,  # of what could not be built there is nothing
            "uses": _DOWNLOAD,
            "with": {"name": job.image, "path": f"out/{job.image}"},
        }
        for job in one.jobs
    ]
    publish = {
        "name": "Publish",
        "env": {
            "REGISTRY": "${{ vars.BUILD_IMAGES_REGISTRY }}",
            **{name: f"${{{{ secrets.{name} }}}}" for name in secrets},
        },
        "run": pipeline.publishing(one, "$REGISTRY"),
    }
    return {
        "name": f"publish {one.name}",
        "needs": [job.key for job in one.jobs],
        "if": _PUBLISHES,
        "environment": ENVIRONMENT,
        **({"permissions": rights} if pipeline.is_keyless else {}),
        "runs-on": one.runner,
        "container": dict(_CONTAINER),
        "timeout-minutes": 60,
        "steps": [_checkout(), *images, {**_SETUP, "run": pipeline.setup}, publish],
    }
