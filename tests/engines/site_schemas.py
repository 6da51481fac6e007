"""Kubernetes' and OpenShift's schemas, made strict: a key that they do not know is a fault."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from harness import PROJECT

OPENAPI = PROJECT / "tests/data/openshift.json"
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
    """What the three kinds refer to in OpenShift's own description; the file says of which day."""
    found = json.loads(OPENAPI.read_text())["definitions"]
    return {name: strict(one) for name, one in found.items()}


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """A definition that knows its keys allows no others."""
    known = schema.get("properties")
    if known and "additionalProperties" not in schema:
        return {**schema, "additionalProperties": False}
    return schema
