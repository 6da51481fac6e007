"""GitLab CI/CD: https://docs.gitlab.com/ci/yaml/"""

from __future__ import annotations

from collections.abc import Mapping

from builder.reports.pipelines.jobs import ENVIRONMENT, PROGRAM, Job, Pipeline, Publication, as_yaml

# https://docs.gitlab.com/ci/runners/hosted_runners/linux/: none is ppc64le.
RUNNERS: Mapping[str, str] = {
    "x86_64": "saas-linux-medium-amd64",
    "aarch64": "saas-linux-medium-arm64",
}
_SETUP = "ci/retry ci/setup images"
# What failed for the runner's sake; what a job's own commands lacked for a moment, ci/retry knows.
_RUNNERS_FAULT = ["runner_system_failure", "scheduler_failure", "api_failure"]


def gitlab(pipeline: Pipeline) -> str:
    """The text of a pipeline, for `.gitlab-ci.yml`.

    Secrets come by masked variables of the environment: BUILD_IMAGES_REGISTRY_USER and _PASSWORD,
    COSIGN_PRIVATE_KEY and COSIGN_PASSWORD. Its jobs have them by themselves, and no others do.
    """
    document = {
        "stages": ["build", "publish"],
        "workflow": {
            "rules": [
                {"if": '$CI_PIPELINE_SOURCE == "merge_request_event"'},
                {"if": "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH"},
            ]
        },
        "default": {
            "image": "debian:13",
            "interruptible": True,
            "retry": {"max": 2, "when": list(_RUNNERS_FAULT)},
        },
    }
    jobs = {job.image: _job(job) for job in pipeline.jobs}
    jobs |= {f"publish {one.name}": _publication(one, pipeline) for one in pipeline.publications}
    return as_yaml(pipeline, {**document, **jobs})


def _job(job: Job) -> dict[str, object]:
    folder = f"out/{job.image}"
    return {
        "stage": "build",
        "tags": [job.runner],
        "timeout": f"{job.minutes}m",
        # At night with today's packages: what did not change comes out with the same digest.
        "rules": [
            {"if": '$CI_PIPELINE_SOURCE == "schedule"', "variables": {"REFRESH": "1"}},
            {"when": "on_success"},
        ],
        "script": [
            _SETUP,
            f"ci/retry {PROGRAM} {job.selectors} ${{REFRESH:+--refresh}}",
        ],
        "artifacts": {
            "when": "always",
            "paths": [f"{folder}/"],
            "reports": {"junit": f"{folder}/evidence/*.xml"},
            "expire_in": "3 days",
        },
    }


def _publication(one: Publication, pipeline: Pipeline) -> dict[str, object]:
    # https://docs.gitlab.com/ci/yaml/signing_examples/: cosign finds the token by that name
    token = {"SIGSTORE_ID_TOKEN": {"aud": "sigstore"}}
    return {
        "stage": "publish",
        "tags": [one.runner],
        "timeout": "60m",
        "interruptible": False,
        "environment": {"name": ENVIRONMENT},
        "needs": [job.image for job in one.jobs],
        # Also where an image failed: `publish` refuses it, and attaches the evidence of that.
        "rules": [
            {
                "if": "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH && $BUILD_IMAGES_REGISTRY",
                "when": "always",
            }
        ],
        **({"id_tokens": token} if pipeline.is_keyless else {}),
        "script": [pipeline.setup, pipeline.publishing(one, "$BUILD_IMAGES_REGISTRY")],
    }
