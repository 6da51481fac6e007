"""Defects in what formats say of an image: settings, labels, variables, scripts."""

from __future__ import annotations

import dataclasses
import json
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

from campaign import Case
from made_formats import (
    CONTRACT,
    ENV,
    LABELS,
    SETTINGS,
    Formats,
    Node,
    base_tree,
    sound,
)

from builder.model.planned import RUNSCRIPT

TREE = base_tree()
SOUND = sound(TREE)
_VARIABLES = f"{ENV}/10-docker2singularity.sh"


def cases() -> list[Case]:
    """All defects of this kind."""
    return [*_in_settings(), *_in_labels(), *_in_variables(), *_in_scripts()]


_SETTINGS: dict[str, Any] = {
    "Entrypoint": ["/bin/evil"],
    "Cmd": ["/bin/evil"],
    "User": "nobody",
    "WorkingDir": "/",
    "Volumes": {"/data": {}},
    "ExposedPorts": {"80/tcp": {}},
    "StopSignal": "SIGKILL",
}


def _with_config(settings: Mapping[str, Any]) -> Formats:
    return dataclasses.replace(SOUND, config={**SOUND.config, "config": settings})


def _in_settings() -> Iterator[Case]:
    """One that the OCI layout or the SIF's copy of its configuration has alone."""
    for key, value in _SETTINGS.items():
        settings = {**SETTINGS, key: value}
        spoiled = {
            "oci": _with_config(settings),
            "sif": dataclasses.replace(SOUND, settings=settings),
        }
        for where, image in spoiled.items():
            named = rf"sif: its {key} is "
            yield Case(family="settings", name=f"{key}: {where}", faults=image.faults, named=named)


def _changed_labels() -> dict[str, dict[str, str]]:
    less = {key: text for key, text in LABELS.items() if key != "title"}
    contract = {key: text for key, text in LABELS.items() if "cpu" not in key}
    return {
        "changed": {**LABELS, "title": "y"},
        "missing": less,
        "added": {**LABELS, "more": "1"},
        "of the contract changed": {**LABELS, "build-images.host.cpu.target": "zen4"},
        "of the contract missing": contract,
        "of the contract added": {**LABELS, "build-images.host.kernel": "6.0"},
    }


def _in_labels() -> Iterator[Case]:
    path = ".singularity.d/labels.json"
    for name, labels in _changed_labels().items():
        scripts = {**SOUND.scripts, path: json.dumps(labels)}
        spoiled = {
            "oci": (_with_config({**SETTINGS, "Labels": labels}), "labels differ"),
            "sif": (dataclasses.replace(SOUND, scripts=scripts), "labels differ"),
            "inspect": (
                dataclasses.replace(SOUND, inspected=scripts),
                "labels in `apptainer inspect",
            ),
            "sif's copy": (
                dataclasses.replace(SOUND, settings={**SETTINGS, "Labels": labels}),
                "its Labels is",
            ),
        }
        for where, (image, named) in spoiled.items():
            yield Case(family="labels", name=f"{name}: {where}", faults=image.faults, named=named)
    path = "opt/build-images/host-contract.json"
    for name, text in {
        "another contract": json.dumps({**CONTRACT, "kernel": "6.0"}),
        "rubbish for a contract": "{",
    }.items():
        image = SOUND.everywhere({**TREE, path: Node(data=text.encode())})
        yield Case(family="labels", name=name, faults=image.faults, named="contract")
    without = {key: node for key, node in TREE.items() if key != path}
    image = SOUND.everywhere(without)
    yield Case(family="labels", name="no contract", faults=image.faults, named="contract")


def _in_variables() -> Iterator[Case]:
    """One that is changed, missing, added or set twice in one format."""
    script, tarball = SOUND.scripts[_VARIABLES], SOUND.tarball_variables
    line = 'export MODE="${MODE:-"a b"}"'
    texts = {
        "changed": (script.replace("a b", "a c"), tarball.replace("a b", "a c")),
        "missing": (script.replace(line, ""), tarball.replace("MODE=a b\n", "")),
        "added": (f"{script}\nexport MORE=1", f"{tarball}MORE=1\n"),
        "set twice": (f"{script}\nexport MODE=c", f"{tarball}MODE=c\n"),
        "PATH changed": (script.replace("/usr/bin:", ""), tarball.replace("/usr/bin:", "")),
    }
    environments = {
        "changed": [one.replace("a b", "a c") for one in SETTINGS["Env"]],
        "missing": [one for one in SETTINGS["Env"] if not one.startswith("MODE")],
        "added": [*SETTINGS["Env"], "MORE=1"],
        "set twice": [*SETTINGS["Env"], "MODE=c"],
        "PATH changed": [one.replace("/usr/bin:", "") for one in SETTINGS["Env"]],
    }
    for name, (in_sif, in_tarball) in texts.items():
        scripts = {**SOUND.scripts, _VARIABLES: in_sif}
        spoiled = {
            "oci": _with_config({**SETTINGS, "Env": environments[name]}),
            "sif": dataclasses.replace(SOUND, scripts=scripts),
            "charliecloud": dataclasses.replace(SOUND, tarball_variables=in_tarball),
        }
        for where, image in spoiled.items():
            named = "does not have the variables|does not set exactly"
            yield Case(
                family="variables", name=f"{name}: {where}", faults=image.faults, named=named
            )


def _in_scripts() -> Iterator[Case]:
    """Scripts of the SIF, which run before or in place of a program."""
    behaving = '\ncase "$*" in *"env -0"*) ;; *) export MODE=other ;; esac'
    quoted = f"{ENV}/90-environment.sh"
    changes = {
        "another runscript": ("runscript", "#!/bin/sh\nexec /bin/evil\n", "unexpected runscript"),
        "a runscript with a line more": (
            "runscript",
            f"#!/bin/sh\ncurl x\n{RUNSCRIPT}\n",
            "unexpected runscript",
        ),
        "another test": ("test", "#!/bin/sh\ntrue\n", "unexpected test script: true"),
        "a script more": (f"{ENV}/91-more.sh", "true\n", "a file that Apptainer does not write"),
        "a script before": (f"{ENV}/00-first.sh", "exit 0\n", "that Apptainer does not write"),
        "variables that behave for env": (
            quoted,
            SOUND.scripts[quoted] + behaving,
            "does not set exactly",
        ),
        "variables that end the shell": (
            _VARIABLES,
            SOUND.scripts[_VARIABLES] + "\nexit 0",
            "does not set exactly",
        ),
        "quoted variables emptied": (quoted, "#!/bin/sh\n", "does not set exactly"),
        "a base script that does more": (
            f"{ENV}/01-base.sh",
            "#!/bin/sh\nexport LD_PRELOAD=/srv/data\n",
            "differs from the one that Apptainer",
        ),
    }
    for name, (file, text, named) in changes.items():
        path = file if file.startswith(ENV) else f".singularity.d/{file}"
        image = dataclasses.replace(SOUND, scripts={**SOUND.scripts, path: text})
        yield Case(family="scripts", name=name, faults=image.faults, named=named)
        if path in SOUND.scripts and "base" not in path:
            shown = dataclasses.replace(SOUND, inspected={**SOUND.scripts, path: text})
            yield Case(
                family="scripts",
                name=f"{name}, shown alone",
                faults=shown.faults,
                named="in `apptainer inspect` differ",
            )

    evil, link = Node(data=b"exec /bin/evil\n", mode=0o755), tarfile.SYMTYPE
    for name, path, node in (
        ("an action that does more", "actions/exec", evil),
        ("another start script", "startscript", evil),
        ("a library more", "libs/libmpi.so.40", Node(data=b"\x7fELF")),
        ("a large library more", "libs/libmpi.so.40", Node(data=bytes(2_000_000))),
        ("a link to a library", "libs/libmpi.so", Node(kind=link, target="/srv/data")),
        ("a link to a script", "env/91-more.sh", Node(kind=link, target="/srv/data")),
        (
            "a hard link to a script",
            "env/91-more.sh",
            Node(kind=tarfile.LNKTYPE, target="srv/data"),
        ),
        ("a script of its own that is a link", "env/99-base.sh", Node(kind=link, target="/srv/x")),
    ):
        image = dataclasses.replace(SOUND, sif_more={f".singularity.d/{path}": node})
        yield Case(
            family="scripts", name=name, faults=image.faults, named=rf"/\.singularity\.d/{path}"
        )
