"""Defects that verification does not catch: each is a limit that docs/checks.md names.

One that is caught after all is a limit that the docs must no longer name.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from campaign import Case
from defects_in_libraries import judge as judge_libraries
from defects_in_manifests import Forged
from defects_in_manifests import judge as judge_manifest
from defects_in_ranks import judge as judge_ranks
from library_roots import Plant, Root
from made_formats import Node, base_tree, sound
from planted_ranks import RankDefect

_TREE = base_tree()
_SOUND = sound(_TREE)


def _forge_all(forged: Forged) -> None:
    """Another image, by a manifest and evidence that agree."""
    digest = "0" * 64
    forged.artifact.update(digest=f"sha256:{digest}")
    for statement in forged.statements.values():
        for subject in statement["subject"]:
            if subject["name"].endswith(f"/{forged.run}"):
                subject["digest"] = {"sha256": digest}


def _elsewhere(root: Root) -> None:
    """The symbol is in a library that nothing loads."""
    root.library("plugin", "libplugin.so.1")
    root.library("provider", "libother.so.1")


def _roots() -> dict[str, Plant]:
    return {
        "a library or another file of a package that is opened by its name at run time": (
            lambda root: root.build("opening", "usr/bin/opening")
        ),
        "a symbol of a library that another file of the image has": _elsewhere,
        "a library that nothing is linked to, with four symbols or more missing": (
            lambda root: root.library("lua", "liblua-x.so.0")
        ),
        "code for newer processors in a library without a note": lambda root: root.library(
            "fast", "libfast.so.1", "-O3", "-march=x86-64-v4"
        ),
    }


def cases() -> list[Case]:
    """The limits; their names are those of the docs."""
    in_sif = {path: dataclasses.replace(node, uid=0, gid=0) for path, node in _TREE.items()}
    in_sif["usr/bin/ping"] = dataclasses.replace(_TREE["usr/bin/ping"], attributes={})
    dated = {path: dataclasses.replace(node, mtime=1) for path, node in _TREE.items()}
    ranks = {
        "messages in a part of the ranks": RankDefect(kind="message", ranks=3),
        "more than 8 MiB": RankDefect(kind="bcast", size=(8 << 20) + 1),
    }
    judged: dict[str, Callable[[Path], Sequence[str]]] = {
        "paths that are left out": _SOUND.in_format(
            "charliecloud", {**_TREE, "etc/hosts": Node(data=b"x"), "tmp/x": Node()}
        ).faults,
        "owners and capabilities in a SIF": _SOUND.in_format("sif", in_sif).faults,
        "times of files": _SOUND.in_format("charliecloud", dated).faults,
        **{name: functools.partial(judge_libraries, plant) for name, plant in _roots().items()},
        **{
            name: functools.partial(judge_ranks, variables=defect.environment)
            for name, defect in ranks.items()
        },
        "a manifest, its evidence and an artifact that were forged together": lambda _: (
            judge_manifest(_forge_all, "sif")
        ),
    }
    return [Case(family="limits", name=name, faults=faults) for name, faults in judged.items()]
