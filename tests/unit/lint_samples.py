"""A spec with nothing wrong, for tests of lint to change; fixtures `planned` and `sample`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from samples import base, image

from builder.model import Spec

CLEAR = "rm -rf /var/lib/apt/lists/*"

# Both texts say the same, and nothing is wrong with either.
DOCKERFILE = """\
# a good one
FROM localhost/build-images/debian13:1 AS build

RUN apt-get update -y && \\
    apt-get install -y --no-install-recommends \\
        gcc \\
        libc6-dev && \\
    rm -rf /var/lib/apt/lists/*

@RUN@
COPY files/src/a.c \\
    files/src/b.c \\
    /src/


FROM localhost/build-images/debian13:1 AS runtime

ENV A=1 \\
    B="two words:$PATH"

COPY --from=build /src /opt/src

LABEL what="a \\"b\\" c" \\
    who=me

@END@
CMD ["/bin/bash"]
"""
DEFINITION = """\
# a good one
BootStrap: oci-archive
From: debian13-x86_64.oci.tar
Stage: build
%post
    . /.singularity.d/env/10-docker*.sh

%post
    apt-get update -y
    apt-get install -y --no-install-recommends \\
        gcc \\
        libc6-dev
    rm -rf /var/lib/apt/lists/*

@RUN@
%files
    files/src/a.c /src/
    files/src/b.c /src/


BootStrap: oci-archive
From: debian13-x86_64.oci.tar
Stage: runtime

%environment
    export A=1
    export B="two words:$PATH"
%post
    export A=1
    export B="two words:$PATH"

%files from build
    /src /opt/src

%labels
    what a "b" c
    who me

@END@
%runscript
    exec "$@"
"""
FILES = {"files/src/a.c": "int a;\n", "files/src/b.c": "int b;\n"}


@pytest.fixture(name="planned", scope="module")
def one_planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    everywhere = [base(architectures=("x86_64", "ppc64le", "aarch64"))]
    return lambda arch: image(tmp_path_factory.mktemp("p"), bases=everywhere, arch=(arch,))


@pytest.fixture(name="sample")
def sample_spec(planned: Callable[[str], Any]) -> Callable[..., Spec]:
    """A spec with commands and lines added: `run` in its first stage, `end` in its last."""

    def make(
        *, run: str = "", end: str = "", docker: str = "", definition: str = "", **more: Any
    ) -> Spec:
        arch = more.pop("arch", "x86_64")
        both = {"@RUN@": run, "@END@": end}
        texts = {
            "dockerfile": _filled(DOCKERFILE, {k: f"RUN {v}" for k, v in both.items() if v}),
            "singularity": _filled(DEFINITION, {k: _post(v) for k, v in both.items() if v}),
        }
        texts["dockerfile"] += docker
        texts["singularity"] += definition
        for file, changes in more.pop("changes", {}).items():
            for old, new in changes.items():
                assert old in texts[file], f"{old} is not there to be changed"
                texts[file] = texts[file].replace(old, new)
        return Spec(image=planned(arch), **{**texts, "files": FILES, **more})

    return make


def _post(commands: str) -> str:
    return "%post\n" + "\n".join(f"    {one}" for one in commands.split(" && "))


def _filled(text: str, parts: Mapping[str, str]) -> str:
    for name in ("@RUN@", "@END@"):
        text = text.replace(f"{name}\n", f"{parts[name]}\n\n" if name in parts else "")
    return text
