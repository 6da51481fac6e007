"""Lint: each rule of our own fires where it should, and nowhere else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from lint_samples import CLEAR, DEFINITION, one_planned, sample_spec
from samples import compare_with_golden

from builder.compile.lint import own_findings
from builder.compile.lint.findings import RULES, LintFinding
from builder.compile.lint.reading import read
from builder.model import Spec
from builder.model.inputs import LockedSource

__all__ = ["one_planned", "sample_spec"]  # fixtures


def problems(spec: Spec, *, locked: bool = False) -> list[LintFinding]:
    return own_findings(read(spec, locked=locked))


def rules(spec: Spec, *, locked: bool = False) -> list[str]:
    """The rules of our own that do not hold."""
    return [problem.rule for problem in problems(spec, locked=locked)]


def test_the_good_sample_is_good(sample: Callable[..., Spec]) -> None:
    assert problems(sample(), locked=True) == []


BOTH = {  # shell commands, as they stand in both texts, and the rule that each breaks
    "wget https://example.org/tool-ppc64le.tar.gz": "foreign-architecture",
    "wget https://example.org/linux/arm64/tool": "foreign-architecture",
    "apt-get install libfoo:ppc64el && " + CLEAR: "foreign-architecture",
    "dpkg -i /tmp/tool_1.0_ppc64el.deb": "foreign-architecture",
    "rpm -i https://example.org/rhel8/ppc64le/cuda.rpm": "foreign-architecture",
    "sh Miniconda3-py312_24.5.0-0-Linux-ppc64le.sh -b": "foreign-architecture",
    "cc -L/usr/lib/powerpc64le-linux-gnu -lx a.c": "foreign-architecture",
    "wget http://example.org/x.tar": "unverified-download",
    "curl -fo x.tar ftp://example.org/y.tar": "unverified-download",
    "git clone git://example.org/x": "unverified-download",
    "wget http://a.org/x.tar && echo abc y.tar | sha256sum -c": "unverified-download",
    "sha256sum -c x.tar.sha256 && wget http://a.org/x.tar": "unverified-download",
    "echo 'deb [trusted=yes] http://a.org/ x main' > /etc/apt/sources.list.d/x.list": (
        "unsigned-repository"
    ),
    "dnf install -y --nogpgcheck x && dnf clean all": "unsigned-repository",
    "curl -fsSL https://sh.example.org | sh -s -- -y": "piped-installer",
    "wget -qO- http://example.org/x.sh|sudo bash": "piped-installer",
    'bash -c "$(curl -fsSL https://example.org/x)"': "piped-installer",
    "curl https://example.org/x | tee /etc/x": "piped-download",
    "apt-get update && apt-get install -y gcc": "cache-left",
    CLEAR + " && apt-get update && apt-get install -y gcc": "cache-left",
    "yum install -y gcc": "cache-left",
    "pip3 install numpy": "cache-left",
    "conda install numpy": "cache-left",
    "apt-key add /key.asc": "apt-key",
    "apt-key adv --keyserver example.org --recv-keys ABC": "key-server",
    "chmod -R 777 /opt": "open-to-all",
    "chmod a+rwX /opt": "open-to-all",
    "echo /usr/local/cuda/lib64/stubs > /etc/ld.so.conf.d/x.conf": "stub-library-path",
}
FINE = (
    "wget https://example.org/tool-x86_64.tar.gz",
    "wget https://example.org/linux/amd64/tool",
    "wget https://example.org/ppc64le/only-a-page/for-x86_64.tar.gz",
    "apt-get install -y gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross && " + CLEAR,
    "cc -L/usr/lib/x86_64-linux-gnu a.c",
    "wget https://example.org/$(uname -m)/x.tar",
    "wget http://a.org/x.tar && echo abc x.tar | sha256sum -c -",
    "wget -O /src/y.tar http://a.org/x.tar && sha512sum --check y.tar.sha512",
    "wget http://a.org/x.tar?a=b && echo abc x.tar | sha256sum -c",
    "make API_KEY=abc",
    "echo 'deb [signed-by=/k.gpg] http://a.org/ x main' > /etc/apt/sources.list.d/x.list",
    "sed -i s,http://a.org,http://b.org, /etc/yum.repos.d/x.repo",
    "curl http://localhost:8080/x",
    "curl -fsSL https://example.org/x.tar.gz | tar -xz",
    "wget -qO - https://example.org/key.pub | gpg --dearmor -o /k.gpg",
    "wget https://example.org/x || true",
    "dnf install -y gcc && dnf clean all",
    "pip3 install --no-cache-dir --target /src/a numpy",
    "pip --no-cache-dir install --target /src/a numpy",
    "chmod 1777 /scratch",
    "chmod -R a+rX /opt",
    "LIBRARY_PATH=/usr/local/cuda/lib64/stubs make",
)


@pytest.mark.parametrize("commands", BOTH)
def test_a_rule_fires_in_both_texts(commands: str, sample: Callable[..., Spec]) -> None:
    spec = sample(end=commands)
    found = [one for one in problems(spec) if one.rule == BOTH[commands]]
    assert {one.file for one in found} == {"Dockerfile", "Singularity.def"}
    for one in found:
        text = spec.dockerfile if one.file == "Dockerfile" else spec.singularity
        line = text.splitlines()[one.line - 1]
        assert any(part.strip() in line for part in commands.split(" && "))


@pytest.mark.parametrize("commands", FINE)
def test_rules_leave_good_commands_alone(commands: str, sample: Callable[..., Spec]) -> None:
    assert problems(sample(run=commands)) == []


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("ppc64le", "Miniconda3-latest-Linux-x86_64.sh"),
        ("ppc64le", "cuda-repo-rhel8.x86_64.rpm"),
        ("ppc64le", "tool-linux-64.tar.bz2"),
        ("aarch64", "tool_amd64.deb"),
        ("x86_64", "tool-sbsa.deb"),
    ],
)
def test_each_architecture_has_its_foreigners(
    arch: str, name: str, sample: Callable[..., Spec]
) -> None:
    found = problems(sample(run=f"wget https://example.org/{name}", arch=arch))
    texts = [one.text for one in found if one.rule == "foreign-architecture"]
    assert len([text for text in texts if name in text]) == 2
    assert f"the image for {arch}" in texts[0]


def test_stubs_may_be_on_the_development_stage_alone(sample: Callable[..., Spec]) -> None:
    path = "/usr/local/cuda/lib64/stubs:/lib"
    end = {
        "dockerfile": {"ENV A=1": f"ENV LD_LIBRARY_PATH={path}"},
        "singularity": {"export A=1": f"export LD_LIBRARY_PATH={path}"},
    }
    assert rules(sample(changes=end)) == ["stub-library-path"] * 2
    begin = {
        "dockerfile": {"COPY files": f"ENV LD_LIBRARY_PATH={path}\nCOPY files"},
        "singularity": {
            "%files\n": f"%environment\n    export LD_LIBRARY_PATH={path}\n%files\n",
        },
    }
    assert rules(sample(changes=begin)) == []


@pytest.mark.parametrize("name", ["API_KEY", "GITHUB_TOKEN", "db_password", "MY_SECRET_VALUE"])
def test_secrets(name: str, sample: Callable[..., Spec]) -> None:
    def with_value(name: str, value: str) -> Spec:
        variable = {"A=1": f"{name}={value}"}
        return sample(changes={"dockerfile": variable, "singularity": variable})

    assert rules(with_value(name, "x1")) == ["secret"] * 2
    assert rules(with_value(name, "$FROM_OUTSIDE")) == []
    assert rules(with_value(name, '""')) == []
    assert rules(with_value("TOKENIZERS_PARALLELISM", "false")) == []
    assert rules(sample(end=f"export {name}=x1")) == ["secret"]
    assert rules(sample(end=f'export {name}=""')) == []


@pytest.mark.parametrize("url", ["https://example.org/x.tar", "git@example.org:x.git"])
def test_add_of_a_url(url: str, sample: Callable[..., Spec]) -> None:
    found = rules(sample(docker=f"ADD {url} /x.tar\n"))
    assert found == ["remote-add", "missing-from-definition"]
    pinned = f"ADD --checksum=sha256:{'0' * 64} https://example.org/x.tar /x.tar\n"
    assert "remote-add" not in rules(sample(docker=pinned))


def test_a_base_is_pinned_once_there_is_a_lock(sample: Callable[..., Spec]) -> None:
    def of(source: str, agent: str = "docker") -> Spec:
        docker = {"FROM localhost/build-images/debian13:1 AS runtime": f"FROM {source} AS runtime"}
        header = {
            "BootStrap: oci-archive\nFrom: debian13-x86_64.oci.tar\nStage: runtime": (
                f"BootStrap: {agent}\nFrom: {source}\nStage: runtime"
            )
        }
        return sample(changes={"dockerfile": docker, "singularity": header})

    loose = of("docker.io/library/debian:13")
    for agent in ("docker", "library", "oras", "shub"):
        of_agent = of("docker.io/library/debian:13", agent)
        assert rules(of_agent, locked=True) == ["unpinned-base"] * 2, agent
    assert rules(loose) == []
    # A definition has no stage upon a stage: the name is an image of the registry.
    [finding] = problems(of("build"), locked=True)
    assert (finding.rule, finding.file) == ("unpinned-base", "Singularity.def")
    assert rules(of(f"docker.io/library/debian:13@sha256:{'0' * 64}"), locked=True) == []


def test_what_is_copied_is_there(sample: Callable[..., Spec]) -> None:
    assert rules(sample(files={"files/src/a.c": ""})) == ["missing-file"] * 2
    folder = {"files/src/a.c \\\n    files/src/b.c": "files/src/"}
    both = {"files/src/a.c": "files/src/", "    files/src/b.c /src/\n": ""}
    assert rules(sample(changes={"dockerfile": folder, "singularity": both})) == []
    source = LockedSource(url="https://a.org/x.tar", file="x.tar", sha256="0" * 64, size=1)
    path = {"files/src/b.c": source.in_context}
    spec = sample(changes={"dockerfile": path, "singularity": path})
    assert rules(spec) == ["missing-file"] * 2
    assert rules(dataclasses.replace(spec, sources=(source,))) == []


DIFFERENT = {
    "a command": ("dockerfile", "CMD [", "RUN ls\nCMD [", "command ls"),
    "a copy": ("dockerfile", "    files/src/b.c \\\n", "", "copy files/src/b.c /src/"),
    "where a copy is from": ("dockerfile", "--from=build", "--from=alpine:3", "copy alpine:3: "),
    "a value": ("dockerfile", "ENV A=1", "ENV A=2", "variable A=2"),
    "an argument": (
        "dockerfile",
        "ENV A=1 \\\n    B=",
        "ARG A=1\nENV B=",
        "variable A=1: not in the Dockerfile",
    ),
    "the older form": ("dockerfile", "ENV A=1 \\\n    B=", "ENV A 2\nENV B=", "variable A=2"),
    "a label": ("singularity", "who me", "who you", "label who=you"),
    "the stage": ("singularity", "    files/src/b.c /src/\n", "", "copy files/src/b.c /src/"),
    "the user": ("dockerfile", "CMD [", "USER 1000\nCMD [", "USER 1000"),
    "a mount": (
        "dockerfile",
        "RUN apt-get",
        "RUN --mount=type=cache,target=/c apt-get",
        "RUN --mount=type=cache,target=/c: a definition has no counterpart",
    ),
    "what is run": ("singularity", '%runscript\n    exec "$@"\n', "", "has no %runscript"),
    "an option": ("dockerfile", "COPY --from", "COPY --chown=1 --from", "COPY --chown=1"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_the_two_texts_say_the_same(case: str, sample: Callable[..., Spec]) -> None:
    file, old, new, text = DIFFERENT[case]
    found = problems(sample(changes={file: {old: new}}))
    assert {one.rule for one in found} <= {"missing-from-definition", "missing-from-dockerfile"}
    assert any(text in one.text for one in found), found


def test_what_is_started_is_in_the_definition(sample: Callable[..., Spec]) -> None:
    _, old, new, text = DIFFERENT["what is run"]
    changes = {"dockerfile": {"CMD [": "ENTRYPOINT ["}, "singularity": {old: new}}
    [found] = problems(sample(changes=changes))
    assert found.text == f'ENTRYPOINT ["/bin/bash"]: the definition {text}'


def test_a_definition_of_one_stage_is_compared_with_all_of_the_dockerfile(
    sample: Callable[..., Spec],
) -> None:
    docker = {
        "FROM localhost/build-images/debian13:1 AS runtime": "FROM build AS runtime",
        "COPY --from=build /src /opt/src\n": "",
    }
    begin, end = DEFINITION.index("BootStrap", 30), DEFINITION.index("%environment")
    one_stage = {
        DEFINITION[begin:end].replace("@RUN@\n", ""): "",
        "%files from build\n    /src /opt/src\n": "",
    }
    spec = sample(changes={"dockerfile": docker, "singularity": one_stage})
    assert rules(spec) == []


DOCKERFILE_OF_ALL = """\
FROM --platform=linux/amd64 docker.io/library/debian:13 as build
ARG A=1 B
ENV C two  words
WORKDIR /work
RUN --mount=type=cache,target=/c cd x && \\
    # a comment
    make -j "a && b" \\
    all
ADD --chown=1 a b /c/
stray
FROM scratch
COPY --from=build /a /b /c
COPY --from=alpine:3 /d "/e f"
ENV G="h i" \\
    J=k
LABEL l=m n="o p"
USER  1000
"""
DEFINITION_OF_ALL = """\
stray
bootstrap: Docker
From: docker.io/library/debian:13 # a comment
Include: x
OtherURL1: y
Mirror: z
%setup
    touch x
%POST -c /bin/bash
    a && b \\
      c
    # a comment

    d
%files from build
    e
    f "g h"
%environment
    export I="j k" L=m
    umask 022
%labels
    n o  p
    q
BootStrap: scratch
Stage: last
%test arguments
    r
"""


def test_both_texts_are_taken_apart(sample: Callable[..., Spec]) -> None:
    spec = dataclasses.replace(
        sample(), dockerfile=DOCKERFILE_OF_ALL, singularity=DEFINITION_OF_ALL
    )
    found = read(spec, locked=True)
    lines = [str(one) for text in (found.docker, found.definition) for one in text.stages]
    for text in (found.docker, found.definition):
        lines += [f"{part}\n  {part.flags!r} {part.words} {part.kind}" for part in text.parts]
        lines += [f"stray: {text.stray}"]
    lines += map(str, found.commands)
    compare_with_golden("\n".join([*lines, ""]), "lint-reading.txt")


SYNTAX = {
    "misspelt": ("dockerfile", "RUN apt", "RNU apt", "dockerfile-syntax"),
    "no value": ("dockerfile", "CMD [", "RUN\nCMD [", "dockerfile-syntax"),
    "before FROM": ("dockerfile", "# a good one", "RUN ls", "dockerfile-syntax"),
    "here-document": ("dockerfile", "CMD [", "RUN cat <<EOF\nEOF\nCMD [", "dockerfile-syntax"),
    "two of a name": ("dockerfile", "AS runtime", "AS build", "dockerfile-syntax"),
    "no such section": ("singularity", "%runscript", "%runscrip", "definition-syntax"),
    "no such header": ("singularity", "Stage: runtime", "Stagee: runtime", "definition-syntax"),
    "no such stage": ("singularity", "from build", "from bild", "definition-syntax"),
    "before the header": ("singularity", "# a good one", "hello", "definition-syntax"),
    "three files": ("singularity", "files/src/a.c /", "files/src/a.c x /", "definition-syntax"),
    "COPY": ("singularity", "    gcc", "    gcc\n    COPY a \\\n  b\n    ls", "docker-syntax"),
    "ENV": ("singularity", "export A=1", "ENV A=1", "docker-syntax"),
    "--mount": ("singularity", "apt-get update", "x --mount=type=cache,target=/c", "docker-syntax"),
    "--from": ("singularity", "files/src/a.c /", "--from=x /", "docker-syntax"),
    "braces": ("singularity", "export A=1", "export A={{ a }}", "template-braces"),
    "and": (
        "singularity",
        "apt-get update -y",
        "git clone https://a.org/x && ls",
        "unseen-failure",
    ),
    **{
        f"RUN in {name}": (
            "singularity",
            "%runscript",
            f"%{name}\n  RUN a\n%runscript",
            "docker-syntax",
        )
        for name in ("post", "environment", "runscript", "test", "startscript", "setup", "pre")
    },
    "setup": ("singularity", "%runscript", "%setup\n    curl a | sh\n%runscript", "runs-on-host"),
}


@pytest.mark.parametrize("case", sorted(SYNTAX))
def test_syntax(case: str, sample: Callable[..., Spec]) -> None:
    file, old, new, rule = SYNTAX[case]
    assert rule in rules(sample(changes={file: {old: new}}))


def test_all_that_is_told_of_all_faults(sample: Callable[..., Spec]) -> None:
    """Every problem, with its place and its way out."""
    lines: list[str] = []
    for commands in BOTH:
        found = [str(one) for one in problems(sample(end=commands))]
        lines += [f"# {commands}", *found]
    for case in (DIFFERENT, SYNTAX):
        for name, (file, old, new, _) in case.items():
            found = [str(one) for one in problems(sample(changes={file: {old: new}}))]
            lines += [f"# {name}", *found]
    compare_with_golden("\n".join([*lines, ""]), "lint.txt")


def test_pip_that_is_told_to_keep_no_cache_leaves_none(sample: Callable[..., Spec]) -> None:
    variable = {"A=1": "PIP_NO_CACHE_DIR=1"}
    changes = {"dockerfile": variable, "singularity": variable}
    assert rules(sample(end="pip3 install numpy", changes=changes)) == []


def test_what_cannot_fail_may_stand_before_and(sample: Callable[..., Spec]) -> None:
    commands = {"apt-get update -y": "cd /var/tmp && mkdir -p x && echo x > y && make"}
    assert "unseen-failure" not in rules(sample(changes={"singularity": commands}))


def test_spython_reads_what_we_read(
    sample: Callable[..., Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rules(sample()) == []
    monkeypatch.setattr(
        "builder.compile.lint.formats._spython_stages", lambda _text: {"build": frozenset()}
    )
    assert rules(sample()) == ["read-by-spython"]
    stages: dict[str, frozenset[str]] = {"build": frozenset(), "runtime": frozenset()}
    monkeypatch.setattr("builder.compile.lint.formats._spython_stages", lambda _text: stages)
    assert set(rules(sample())) == {"read-by-spython"}

    def refuses(_text: str) -> None:
        raise NotImplementedError("only docker is supported")

    monkeypatch.setattr("builder.compile.lint.formats._spython_stages", refuses)
    [problem] = problems(sample())
    assert "only docker is supported" in problem.text


@pytest.mark.parametrize(
    ("command", "lost"),
    [
        *(
            (f"{pip} install a==1", "/usr/lib/python3")
            for pip in ("pip", "/usr/bin/pip3", "/bin/pip")
        ),
        ("/opt/venv/bin/pip install a==1", "/opt/venv"),
        ("pip3 install --target /opt/a a==1", "/opt/a"),
        ("cd /var/tmp/x && make install", "/usr/local"),
        ("cd /var/tmp/x && ./configure --prefix=/opt/x && make -j4 install", "/opt/x"),
        ("/opt/scif/bin/scif install /src/a.scif", "/scif"),
        *((f"{word} a /usr/b", "/usr/b") for word in ("cp -r", "cp", "mv", "ln", "install")),
        ("A=1 cp a /usr/b=c", "/usr/b=c"),
        ("cp -r a /srcs", "/srcs"),
        ("mpifort -o /opt/m/bin/m /m.f90", "/opt/m/bin/m"),
        ("mpifort -o m /m.f90", ""),
        ("cp -r a /", ""),
        ("cp -r build /src/more", ""),
        ("pip3 install --target /src/python a==1", ""),
        ("cd /var/tmp/x && make", ""),
        *((f"cp a {path}", "") for path in ("/var/tmp/b", "/tmp/b", "/root/b", "/etc/b")),
        *((f"mv a {path}", "") for path in ("b", "/opt/build-images/b", "/usr/share/keyrings/b")),
    ],
)
def test_what_no_copy_takes_over_is_lost(
    command: str, lost: str, sample: Callable[..., Spec]
) -> None:
    found = [
        problem
        for problem in problems(sample(run=command))
        if problem.rule == "lost-between-stages"
    ]
    assert [problem.text.split(": ")[1] for problem in found] == ([lost] if lost else [])


def test_what_both_stages_do_is_not_lost(sample: Callable[..., Spec]) -> None:
    command = "ln -sfn cuda-10.1 /usr/local/cuda"
    assert "lost-between-stages" in rules(sample(run=command))
    assert "lost-between-stages" not in rules(sample(run=command, end=command))


def test_every_rule_is_seen_to_fire() -> None:
    fired = {*BOTH.values(), *(case[-1] for case in SYNTAX.values())}
    fired |= {"remote-add", "unpinned-base", "secret", "missing-file", "read-by-spython"}
    fired |= {"missing-from-definition", "missing-from-dockerfile", "lost-between-stages"}
    assert fired == {rule.name for rule in RULES}
