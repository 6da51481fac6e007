"""The shape of the house: who imports whom, who starts programs, and how long a file is."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
from samples import ROOT
from structure import ROOMS, Module, Structure, figures

from builder.host.doctor import FORMAT_TITLES as DOCTOR_TITLES
from builder.model import FORMATS
from builder.model.manifest import FILES as ARTIFACT_FILES
from builder.reports.report.view import FORMAT_TITLES as REPORT_TITLES
from builder.trust.policy.records import PULLED
from builder.verify.runners import DEFAULTS

MAX_LINES = 400
STARTS_PROGRAMS = re.compile(
    r"os\.(system|popen|exec\w*|spawn\w*|posix_spawnp?|fork\w*)|pty\.spawn|asyncio\.create_subprocess_\w+"
)


def imported(module: Module) -> Iterator[str]:
    """The full name of everything that a module imports, also within functions."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"from {'.' * node.level}: imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.fixture(scope="module", name="shape")
def shape_of_the_package() -> Structure:
    return Structure(ROOT)


def test_rooms_import_earlier_rooms_alone(shape: Structure) -> None:
    assert shape.backward() == []
    assert shape.loose() == []


def test_unit_tests_are_in_the_same_rooms(pytestconfig: pytest.Config) -> None:
    folders = {path.parent.name for path in (ROOT / "tests/unit").rglob("test_*.py")}
    assert folders == {*ROOMS, "unit"}
    passed_over = pytestconfig.getini("norecursedirs")
    assert not [one for one in folders if any(fnmatch(one, way) for way in passed_over)]


def test_no_figure_grows(shape: Structure) -> None:
    """Lower `most` in bench/structure.py whenever a figure falls."""
    grown = [f"{one.name}: {one.value:g}" for one in figures(shape) if one.value > one.most]
    assert grown == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("from builder.load import early\n", "backward"),
        ("def later():\n    from builder.load import early\n", "backward"),
        ("if TYPE_CHECKING:\n    from builder.load import early\n", "backward"),
        ("import builder.model.other\n", "cyclic"),
    ],
)  # fmt: skip
def test_an_import_that_goes_back_is_seen(text: str, fault: str, tmp_path: Path) -> None:
    for name, content in {
        "load/early": "",
        "model/other": "from builder.model import late\n",
        "model/late": text,
    }.items():
        file = tmp_path / f"builder/{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(content)
    (tmp_path / "builder/__init__.py").touch()
    shape = Structure(tmp_path)
    found = {"backward": shape.backward(), "cyclic": shape.cyclic()}
    assert found.pop(fault)
    assert not any(found.values())


def test_process_alone_starts_programs(shape: Structure) -> None:
    started: dict[str, list[str]] = {}
    for name, module in shape.modules.items():
        names = set(imported(module))
        roots = {imported_name.split(".")[0] for imported_name in names}
        calls = (node for node in module.nodes if isinstance(node, ast.Call))
        called = {ast.unparse(node.func) for node in calls if isinstance(node.func, ast.Attribute)}
        starts = [call for call in called | names if STARTS_PROGRAMS.fullmatch(call)]
        started[name] = sorted(roots & {"subprocess", "pty", "multiprocessing", "pexpect"}) + starts
    # The second is started by the first.
    allowed = {"builder.system.process", "builder.system.descendants"}
    assert {name for name, calls in started.items() if calls} == allowed


def test_spec_alone_imports_hpccm(shape: Structure) -> None:
    users = {
        name
        for name, module in shape.modules.items()
        if any(imported_name.split(".")[0] == "hpccm" for imported_name in imported(module))
    }
    assert users
    assert all(name.startswith("builder.compile.spec.") for name in users)


def test_a_file_is_read_in_one_go(shape: Structure) -> None:
    lines = {name: len(m.file.read_text().splitlines()) for name, m in shape.modules.items()}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_modules_keep_no_mutable_globals(shape: Structure) -> None:
    found = [
        f"{name}: global {', '.join(node.names)}"
        for name, module in shape.modules.items()
        for node in module.nodes
        if isinstance(node, ast.Global)
    ]
    assert found == []


def tracked() -> list[Path]:
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no git, or no git checkout: the tracked files are not known")
    done = subprocess.run(
        [git, "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


# Package mirrors and registries are chosen on the machine (builder.build.mirror), never here.
# Pages for people, such as a distribution's search, may be linked.
HOSTS = re.compile(
    r"\b(?:"
    r"(?:deb|security|ftp(?:\.\w+)?|httpredir|cdn-fastly\.deb|snapshot)\.debian\.org"
    r"|(?:archive|security|ports|\w\w\.archive)\.ubuntu\.com"
    r"|(?:test\.|upload\.)?py" + r"pi\.org"
    r"|files\.pythonhosted\.org"
    r"|registry\.npmjs\.org"
    r"|(?:static\.|index\.)?crates\.io"
    r"|proxy\.golang\.org"
    r")",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"(?<![\w.}$])/(?:wor" + r"k/\w|tm" + r"p/w(?:/|\b))")


def found_in_tracked(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for file in tracked()
        for text in [file.read_text(errors="replace")]
        if pattern.search(text)  # most files have none
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("table", [ARTIFACT_FILES, DOCTOR_TITLES, REPORT_TITLES, PULLED, DEFAULTS])
def test_tables_of_formats_have_each_format(table: Mapping[str, object]) -> None:
    assert {*FORMATS} <= {*table}


@pytest.mark.parametrize("page", ["architecture.md", "development.md"])
def test_names_that_the_docs_point_to_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    absent = []
    for names, file in re.findall(r"((?:`\w+`(?:, | and )?)+) in `([\w/]+\.(?:py|ya?ml))`", text):
        paths = [*(ROOT / "builder").rglob(file), *ROOT.glob(file), *(ROOT / "tests").rglob(file)]
        sources = "".join(path.read_text() for path in paths)
        absent += [
            f"{name} in {file}"
            for name in re.findall(r"\w+", names)
            if name != "and" and not re.search(rf"\b{name}\b", sources)
        ]
    assert absent == []


def test_no_package_host_is_written_down() -> None:
    assert found_in_tracked(HOSTS) == []


def test_no_path_of_one_machine_is_written_down() -> None:
    assert found_in_tracked(MACHINE_PATHS) == []


def test_the_patterns_find_what_they_are_for() -> None:
    dot, slash = ".", "/"
    for parts in (
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("ftp", "de", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("py" + "pi", "org"),
    ):
        assert HOSTS.search(f"http://{dot.join(parts)}/x")
    assert not HOSTS.search("https://packages.debian.org/trixie/")
    for parts in (("", "work", "x"), ("", "tmp", "w", "v")):
        assert MACHINE_PATHS.search(f"cd {slash.join(parts)}")
    assert not MACHINE_PATHS.search("/var/lib/work/x and /tmp/work")
