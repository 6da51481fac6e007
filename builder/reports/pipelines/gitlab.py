"""GitLab CI/CD: https://docs.gitlab.com/ci/yaml/"""

from __future__ import annotations

from collections.abc import Mapping

from builder.reports.pipelines.jobs import ENVIRONMENT, Job, Pipeline, Publication, as_yaml

# https://docs.gitlab.com/ci/runners/hosted_runners/linux/: none is ppc64le.
RUNNERS: Mapping[str, str] = {
    "x86_64": "saas-linux-medium-amd64",
    "aarch64": "saas-linux-medium-arm64",
}
# Failures of the runner; ci/retry repeats a job's own commands.
_RUNNERS_FAULT = ["runner_system_failure", "scheduler_failure", "api_failure"]


def gitlab(pipeline: Pipeline) -> str:
    """Return the text of a pipeline, for `.gitlab-ci.yml`.

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
            "retry": {"max": 2, "when": _RUNNERS_FAULT},
        },
    }
    jobs = {job.image: _job(job) for job in pipeline.jobs}
    jobs |= {
        f"publish {publication.name}": _publication(publication, pipeline)
        for publication in pipeline.publications
    }
    return as_yaml(pipeline, {**document, **jobs})


def _job(job: Job) -> dict[str, object]:
    folder = f"out/{job.image}"
    return {
        "stage": "build",
        "tags": [job.runner],
        "timeout": f"{job.minutes}m",
        "rules": [
            {"if": '$CI_PIPELINE_SOURCE == "schedule"', "variables": {"REFRESH": "1"}},
            {"when": "on_success"},
        ],
        "script": ["ci/retry ci/setup images", job.build],
        "artifacts": {
            "when": "always",
            "paths": [f"{folder}/"],
            "reports": {"junit": f"{folder}/evidence/*.xml"},
            "expire_in": "3 days",
        },
    }


def _publication(publication: Publication, pipeline: Pipeline) -> dict[str, object]:
    # https://docs.gitlab.com/ci/yaml/signing_examples/: cosign finds the token by that name
    token = {"SIGSTORE_ID_TOKEN": {"aud": "sigstore"}}
    return {
        "stage": "publish",
        "tags": [publication.runner],
        "timeout": "60m",
        "interruptible": False,
        "environment": {"name": ENVIRONMENT},
        "needs": [job.image for job in publication.jobs],
        # Also where an image failed: `publish` refuses it, and attaches the evidence of that.
        "rules": [
            {
                "if": "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH && $BUILD_IMAGES_REGISTRY",
                "when": "always",
            }
        ],
        **({"id_tokens": token} if pipeline.is_keyless else {}),
        "script": [pipeline.setup, pipeline.publishing(publication, "$BUILD_IMAGES_REGISTRY")],
    }
