"""Lint: each rule of our own fires where it should and nowhere else; the cache; the linters."""

from __future__ import annotations

import dataclasses
import json
import re
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from samples import GOLDEN, ROOT, base, block, image, recipe, shipped_plan

from builder.errors import Interrupted, StepFailed
from builder.lint import IGNORED, RULES, Finding, LintReport, lint, programs
from builder.lint.pieces import places
from builder.lint.rules import own_problems
from builder.model import Spec
from builder.model.locked import LockedSource
from builder.process import Processes
from builder.spec import compile_spec

NO_PROGRAMS = "/nonexistent"
CLEAR = "rm -rf /var/lib/apt/lists/*"
RUN_CHECKS = (ROOT / "tests/images/run-checks").read_text()

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


def rules(spec: Spec, *, locked: bool = False) -> list[str]:
    """The rules of our own that do not hold."""
    return [problem.rule for problem in own_problems(spec, locked=locked)]


def test_the_good_sample_is_good(sample: Callable[..., Spec]) -> None:
    assert own_problems(sample(), locked=True) == []


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
    "wget -O y.tar http://a.org/x.tar && sha512sum --check y.tar.sha512",
    "echo 'deb [signed-by=/k.gpg] http://a.org/ x main' > /etc/apt/sources.list.d/x.list",
    "sed -i s,http://a.org,http://b.org, /etc/yum.repos.d/x.repo",
    "curl http://localhost:8080/x",
    "curl -fsSL https://example.org/x.tar.gz | tar -xz",
    "wget -qO - https://example.org/key.pub | gpg --dearmor -o /k.gpg",
    "wget https://example.org/x || true",
    "dnf install -y gcc && dnf clean all",
    "pip3 install --no-cache-dir numpy",
    "pip --no-cache-dir install numpy",
    "chmod 1777 /scratch",
    "chmod -R a+rX /opt",
    "LIBRARY_PATH=/usr/local/cuda/lib64/stubs make",
)


@pytest.mark.parametrize("commands", BOTH)
def test_a_rule_fires_in_both_texts(commands: str, sample: Callable[..., Spec]) -> None:
    spec = sample(end=commands)
    problems = own_problems(spec, locked=False)
    found = [one for one in problems if one.rule == BOTH[commands]]
    assert {one.file for one in found} == {"Dockerfile", "Singularity.def"}, problems
    for one in found:
        text = spec.dockerfile if one.file == "Dockerfile" else spec.singularity
        line = text.splitlines()[one.line - 1]
        assert any(part.strip() in line for part in commands.split(" && "))


@pytest.mark.parametrize("commands", FINE)
def test_rules_leave_good_commands_alone(commands: str, sample: Callable[..., Spec]) -> None:
    assert own_problems(sample(run=commands), locked=False) == []


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
    found = own_problems(sample(run=f"wget https://example.org/{name}", arch=arch), locked=False)
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
    assert rules(with_value("TOKENIZERS_PARALLELISM", "false")) == []


def test_add_of_a_url(sample: Callable[..., Spec]) -> None:
    found = rules(sample(docker="ADD https://example.org/x.tar /x.tar\n"))
    assert found == ["remote-add", "missing-from-definition"]
    pinned = f"ADD --checksum=sha256:{'0' * 64} https://example.org/x.tar /x.tar\n"
    assert "remote-add" not in rules(sample(docker=pinned))


def test_a_base_is_pinned_once_there_is_a_lock(sample: Callable[..., Spec]) -> None:
    def of(source: str) -> Spec:
        docker = {"FROM localhost/build-images/debian13:1 AS runtime": f"FROM {source} AS runtime"}
        header = {
            "BootStrap: oci-archive\nFrom: debian13-x86_64.oci.tar\nStage: runtime": (
                f"BootStrap: docker\nFrom: {source}\nStage: runtime"
            )
        }
        return sample(changes={"dockerfile": docker, "singularity": header})

    loose = of("docker.io/library/debian:13")
    assert rules(loose, locked=True) == ["unpinned-base"] * 2
    assert rules(loose) == []
    assert rules(of(f"docker.io/library/debian:13@sha256:{'0' * 64}"), locked=True) == []


def test_what_is_copied_is_there(sample: Callable[..., Spec]) -> None:
    assert rules(sample(files={"files/src/a.c": ""})) == ["missing-file"] * 2
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
    found = own_problems(sample(changes={file: {old: new}}), locked=False)
    assert {one.rule for one in found} <= {"missing-from-definition", "missing-from-dockerfile"}
    assert any(text in one.text for one in found), found


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
    "COPY": ("singularity", "    gcc", "    gcc\n    COPY a b\n    ls", "docker-syntax"),
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
    "setup": ("singularity", "%runscript", "%setup\n    ls\n%runscript", "runs-on-host"),
    "spython": ("singularity", "export A=1\n%post", "export A=1\n%post # from: x", "-"),
}


@pytest.mark.parametrize("case", sorted(SYNTAX.keys() - {"spython"}))
def test_syntax(case: str, sample: Callable[..., Spec]) -> None:
    file, old, new, rule = SYNTAX[case]
    assert rule in rules(sample(changes={file: {old: new}}))


def test_what_cannot_fail_may_stand_before_and(sample: Callable[..., Spec]) -> None:
    commands = {"apt-get update -y": "cd /var/tmp && mkdir -p x && make"}
    assert "unseen-failure" not in rules(sample(changes={"singularity": commands}))


def test_spython_reads_what_we_read(
    sample: Callable[..., Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rules(sample()) == []
    monkeypatch.setattr("builder.lint.syntax._spython_stages", lambda _text: {"build": frozenset()})
    assert rules(sample()) == ["read-by-spython"]
    stages: dict[str, frozenset[str]] = {"build": frozenset(), "runtime": frozenset()}
    monkeypatch.setattr("builder.lint.syntax._spython_stages", lambda _text: stages)
    assert set(rules(sample())) == {"read-by-spython"}

    def refuses(_text: str) -> None:
        raise NotImplementedError("only docker is supported")

    monkeypatch.setattr("builder.lint.syntax._spython_stages", refuses)
    [problem] = own_problems(sample(), locked=False)
    assert "only docker is supported" in problem.text


def test_every_rule_is_seen_to_fire() -> None:
    fired = {*BOTH.values(), *(case[-1] for case in SYNTAX.values())}
    fired |= {"remote-add", "unpinned-base", "secret", "missing-file", "read-by-spython"}
    fired |= {"missing-from-definition", "missing-from-dockerfile"}
    assert fired - {"-"} == {rule.name for rule in RULES}


# Specs that are shipped


def shipped() -> list[Spec]:
    return [compile_spec(one, run_checks=RUN_CHECKS) for one in shipped_plan().images]


def test_shipped_specs_are_clean_by_our_own_rules() -> None:
    report = lint_without_programs(shipped())
    assert report.findings == ()
    assert report.specs == len(shipped_plan().images)


def test_shipped_specs_are_clean(tmp_path: Path) -> None:
    needs_linters()
    specs = shipped()
    report = run(specs, tmp_path)
    assert report.findings == ()
    assert [name.split()[0] for name in report.ran][:2] == ["hadolint", "shellcheck"]


def test_the_recipe_is_named_by_the_finding(tmp_path: Path) -> None:
    blocks = (block("shell", commands=["curl http://example.org/x.tar"]),)
    one = image(tmp_path, recipes=[recipe(development=blocks)])
    report = lint_without_programs([compile_spec(one, run_checks=RUN_CHECKS)])
    assert [str(finding) for finding in report.findings] == [
        f"core-1.0-debian13-x86_64/{place}: error unverified-download: "
        "http://example.org/x.tar comes without a checksum"
        for place in ("Dockerfile:9", "Singularity.def:17")
    ]


# Two other parsers


def test_buildkit_reads_the_same_instructions() -> None:
    dockerfile = pytest.importorskip("dockerfile", reason="BuildKit's parser has no wheel here")
    for file in sorted(GOLDEN.glob("spec/*/Dockerfile")):
        from builder.lint.dockerfile import read_dockerfile  # noqa: PLC0415

        text = file.read_text()
        theirs = [
            (one.cmd.upper(), one.start_line, " ".join(one.original.split()))
            for one in dockerfile.parse_string(text)
        ]
        ours = [
            (one.name, one.line, " ".join(f"{one.name} {one.value}".split()))
            for one in read_dockerfile(text).instructions
        ]
        assert ours == theirs


# The programs


def lint_without_programs(specs: list[Spec], cache: Path | None = None) -> LintReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sysconfig, "get_path", lambda _name: NO_PROGRAMS)
        return lint(specs, processes=Processes(), search_path=NO_PROGRAMS, cache=cache, jobs=1)


def needs_linters() -> None:
    if missing := [name for name in programs.LINTERS if name not in programs.find(NO_PROGRAMS)]:
        pytest.skip(f"missing on this machine: {', '.join(missing)}")


def run(specs: list[Spec], cache: Path | None = None, processes: Any = None) -> LintReport:
    return lint(
        specs,
        processes=processes or Processes(),
        search_path=NO_PROGRAMS,
        cache=cache,
        jobs=2,
    )


def test_a_missing_linter_is_said(sample: Callable[..., Spec]) -> None:
    report = lint_without_programs([sample(run="chmod 777 /x")])
    assert report.missing == ("hadolint", "shellcheck")
    assert {finding.rule for finding in report.findings} == {"open-to-all"}
    assert all("hadolint" not in name for name in report.ran)


def test_what_a_missing_linter_did_not_see_is_looked_at_when_it_is_there(
    sample: Callable[..., Spec], tmp_path: Path
) -> None:
    needs_linters()
    spec = sample(run="cp $(ls *.c | head -n 1) /x")
    assert lint_without_programs([spec], tmp_path).findings == ()
    report = run([spec], tmp_path)
    assert report.cached == 0
    assert "SC2012" in {finding.rule for finding in report.findings}


def test_hadolint_and_shellcheck_find_their_lines(sample: Callable[..., Spec]) -> None:
    needs_linters()
    check = "#!/bin/sh\ntrue\n[[ -e /x ]]\n"
    spec = sample(
        run="ls && ls *.c && true",
        changes={"dockerfile": {"ENV A=1": "WORKDIR here\nENV A=1"}},
        files={**FILES, "files/checks/10-x": check},
    )
    found = [one for one in run([spec]).findings if re.match(r"DL|SC", one.rule)]
    lines = {(one.file, one.rule): one.line for one in found}
    docker, definition = spec.dockerfile.splitlines(), spec.singularity.splitlines()
    assert "WORKDIR here" in docker[lines["Dockerfile", "DL3000"] - 1]
    assert "RUN ls" in docker[lines["Dockerfile", "SC2035"] - 1]
    assert "ls *.c" in definition[lines["Singularity.def", "SC2035"] - 1]
    assert lines["files/checks/10-x", "SC3010"] == 3


def test_pieces_say_what_the_whole_dockerfile_says(sample: Callable[..., Spec]) -> None:
    """hadolint sees RUN instructions apart: nothing must get lost or appear by that."""
    needs_linters()
    run_ = "cd x; sudo ls; curl -k $foo && useradd me && echo '\\n'"
    specs = [*shipped(), sample(run=run_, end="ls ~/$1; for f in $(ls); do cat $f; done")]
    found = programs.find(NO_PROGRAMS)
    for spec in specs:
        where = [place for place in places(spec) if place.file == "Dockerfile"]
        said = programs.remarks([one.piece for one in where], found, Processes(), 2)
        apart = {
            (place.line(remark.line), remark.rule)
            for place in where
            for remark in said[place.piece]
        }
        piece = dataclasses.replace(where[-1].piece, text=spec.dockerfile)
        [remarks] = programs.remarks([piece], found, Processes(), 1).values()
        assert apart == {(remark.line, remark.rule) for remark in remarks}
        assert bool(apart) is (spec is specs[-1])


def test_identical_texts_are_given_to_a_linter_once() -> None:
    specs = shipped()
    pieces = [place.piece for spec in specs for place in places(spec)]
    assert len(set(pieces)) < len(pieces) / 3


class Counts(Processes):
    """Processes that count what they start."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []

    def capture(self, argv: Any, **rest: Any) -> Any:
        self.started.append(Path(argv[0]).name)
        return super().capture(argv, **rest)


def test_unchanged_specs_start_nothing(sample: Callable[..., Spec], tmp_path: Path) -> None:
    needs_linters()
    specs = [sample(run="chmod 777 /a; ls ~/$1"), sample(run="true")]
    first, second, third = Counts(), Counts(), Counts()
    report = run(specs, tmp_path, first)
    assert report.cached == 0
    assert {"hadolint", "shellcheck"} == set(first.started)
    again = run(specs, tmp_path, second)
    assert (again.cached, second.started) == (2, [])
    assert (again.findings, again.ran) == (report.findings, report.ran)
    assert report.findings
    changed = run([*specs, sample(run="ls")], tmp_path, third)
    assert changed.cached == 2
    assert third.started


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"spec KEY": 5}', '{"spec KEY": [{"file": 1}]}', b"\xff"]
)
def test_a_cache_that_is_broken_is_no_cache(
    text: str | bytes, sample: Callable[..., Spec], tmp_path: Path
) -> None:
    specs = [sample(run="chmod 777 /a")]
    expected = lint_without_programs(specs, tmp_path).findings
    file = tmp_path / "lint.json"
    key = next(name for name in json.loads(file.read_text()) if name.startswith("spec "))
    raw = text if isinstance(text, bytes) else text.replace("spec KEY", key).encode()
    file.write_bytes(raw)
    report = lint_without_programs(specs, tmp_path)
    assert (report.cached, report.findings) == (0, expected)
    assert lint_without_programs(specs, tmp_path).cached == 1


def test_the_cache_keeps_what_others_wrote(sample: Callable[..., Spec], tmp_path: Path) -> None:
    one, other = sample(run="ls"), sample(run="true")
    lint_without_programs([one], tmp_path)
    lint_without_programs([other], tmp_path)
    assert lint_without_programs([one, other], tmp_path).cached == 2
    assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["lint.json"]


def test_a_cache_that_cannot_be_written_is_no_fault(
    sample: Callable[..., Spec], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert lint_without_programs([sample()], tmp_path / "file" / "below").findings == ()


def test_the_lock_is_part_of_the_key(sample: Callable[..., Spec], tmp_path: Path) -> None:
    source = {"localhost/build-images/debian13:1 AS runtime": "docker.io/debian:13 AS runtime"}
    spec = sample(changes={"dockerfile": source})
    options: dict[str, Any] = {"processes": Processes(), "cache": tmp_path, "jobs": 1}
    for locked in (False, True, False):
        report = lint([spec], search_path=NO_PROGRAMS, locked=locked, **options)
        assert ("unpinned-base" in {one.rule for one in report.findings}) is locked


def fake(folder: Path, text: str) -> dict[str, programs.Program]:
    path = folder / "hadolint"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return {"hadolint": programs.Program(name="hadolint", path=str(path), stamp="")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo boom >&2; exit 3", "hadolint ended with status 3(.|\n)*boom"),
        ("echo hello", "hadolint printed no JSON(.|\n)*hello"),
    ],
)
def test_a_linter_that_fails_is_an_error(
    text: str, message: str, sample: Callable[..., Spec], tmp_path: Path
) -> None:
    pieces = [place.piece for place in places(sample())]
    with pytest.raises(StepFailed, match=message):
        programs.remarks(pieces, fake(tmp_path, text), Processes(), 2)


def test_a_stopped_run_starts_no_linter(sample: Callable[..., Spec], tmp_path: Path) -> None:
    processes = Processes()
    processes.stop()
    pieces = [place.piece for place in places(sample())]
    with pytest.raises(Interrupted):
        programs.remarks(pieces, fake(tmp_path, "echo []"), processes, 2)


def test_settings_of_the_user_do_not_decide(
    sample: Callable[..., Spec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_linters()
    (tmp_path / "hadolint.yaml").write_text("ignored: [DL3004]\n")
    (tmp_path / ".hadolint.yaml").write_text("ignored: [DL3004]\n")
    (tmp_path / ".shellcheckrc").write_text("disable=all\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELLCHECK_OPTS", "--exclude=SC2070")
    monkeypatch.chdir(tmp_path)
    found = {one.rule for one in run([sample(run="sudo ls && [ -n $1 ]")]).findings}
    assert {"DL3004", "SC2070"} <= found


def test_a_script_is_read_as_its_shell(sample: Callable[..., Spec]) -> None:
    scripts = {"#!/bin/bash": "bash", "#!/usr/bin/env bash": "bash", "#!/bin/sh -e": "sh"}
    files = {f"files/{n}": f"{line}\ntrue\n" for n, line in enumerate(scripts)}
    files["files/x.py"] = "#!/usr/bin/env python3\n"
    found = {place.file: place.piece.dialect for place in places(sample(files=files))}
    assert [found[f"files/{n}"] for n in range(3)] == list(scripts.values())
    assert "files/x.py" not in found
    section = "%test -c /bin/bash\n    [[ -e /x ]]\n"
    [piece] = [
        place.piece for place in places(sample(definition=section)) if "[[" in place.piece.text
    ]
    assert piece.dialect == "bash"


# What the documentation says


def table(title: str) -> dict[str, list[str]]:
    text = (ROOT / "docs" / "lint.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text.partition(f"## {title}\n")[2], re.M)
    below = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return {name: cells.split(" | ") for name, cells in rows if f"| `{name}` |" in below}


def test_the_rules_are_documented() -> None:
    expected = {rule.name: [rule.level, rule.what, rule.why] for rule in RULES}
    assert table("Our own rules") == expected


def test_ignored_rules_are_documented_with_their_reasons() -> None:
    assert {name: [reason] for name, reason in IGNORED.items()} == table("Ignored rules of others")
    assert all(len(reason) > 20 for reason in IGNORED.values())


def test_findings_are_sorted_and_told_by_line() -> None:
    make = {"file": "Dockerfile", "level": "error", "rule": "secret", "text": "x"}
    late, early = Finding(image="a", line=12, **make), Finding(image="a", line=2, **make)
    assert sorted([late, early]) == [early, late]
    assert str(early) == "a/Dockerfile:2: error secret: x"
