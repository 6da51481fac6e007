"""A client for OCI distribution specification 1.1; all content is checked against its digest."""

from __future__ import annotations

from builder.registry.client import Registry, connect
from builder.registry.credentials import Credentials, Login, RegistryState
from builder.registry.failures import (
    Denied,
    NotThere,
    RegistryFailed,
    Unreachable,
    WrongContent,
)
from builder.registry.manifests import INDEX, LARGEST_MANIFEST, MANIFEST, Source
from builder.registry.references import Descriptor, Reference, is_digest, is_repository, is_tag
from builder.registry.repository import INDEXES, MANIFESTS

__all__ = [
    "INDEX",
    "INDEXES",
    "LARGEST_MANIFEST",
    "MANIFEST",
    "MANIFESTS",
    "Credentials",
    "Denied",
    "Descriptor",
    "Login",
    "NotThere",
    "Reference",
    "Registry",
    "RegistryFailed",
    "RegistryState",
    "Source",
    "Unreachable",
    "WrongContent",
    "connect",
    "is_digest",
    "is_repository",
    "is_tag",
]
