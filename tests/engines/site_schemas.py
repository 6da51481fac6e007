"""Kubernetes' and OpenShift's schemas, made strict: a key that they do not know is a fault."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

OPENAPI = "OPENSHIFT_OPENAPI"
DEFINITIONS = {
    "ImageStream": "com.github.openshift.api.image.v1.ImageStream",
    "BuildConfig": "com.github.openshift.api.build.v1.BuildConfig",
    "Template": "com.github.openshift.api.template.v1.Template",
}


def kubernetes_faults(document: dict[str, Any], version: str) -> list[str]:
    """What a release of Kubernetes finds wrong in a manifest."""
    validate = pytest.importorskip("kubernetes_validate", reason="no kubernetes-validate here")
    try:
        validate.validate(document, version, strict=True)
    except (validate.ValidationError, validate.SchemaNotFoundError) as error:
        return [str(error)]
    return []


def openshift_faults(document: dict[str, Any]) -> list[str]:
    """What OpenShift's API finds wrong: its own description where there is one, and ours."""
    schema = {
        "$ref": f"#/definitions/{DEFINITIONS[document['kind']]}",
        "definitions": openshift_definitions(),
    }
    validator = jsonschema.Draft4Validator(schema)
    return [f"{one.json_path}: {one.message}" for one in validator.iter_errors(document)]


def openshift_definitions() -> dict[str, Any]:
    """From openapi/openapi.json of https://github.com/openshift/api, which is not kept here."""
    path = os.environ.get(OPENAPI)
    if not path:
        pytest.skip(f"{OPENAPI} does not name openapi/openapi.json of github.com/openshift/api")
    found = json.loads(Path(path).read_text())["definitions"]
    return {name: strict(one) for name, one in found.items()}


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A definition that knows its keys allows no others."""
    known = schema.get("properties")
    if known and "additionalProperties" not in schema:
        return {**schema, "additionalProperties": False}
    return schema
