"""Copies of this project; and projects of any size, whose recipes and bases all differ.

Each recipe has a parent, blocks of hpccm's with versions of its own, packages, templates and the
shipped checks; each base image has packages and commands of its own. No cell is left out.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

SHIPPED = Path(__file__).resolve().parents[1]
MPIS = ("openmpi4.1", "mpich4.0")
ARCHITECTURES = ("x86_64", "ppc64le")
_FAMILIES = 5  # one recipe in five is a parent


def copy_of_project(folder: Path) -> Path:
    """Copy this project's input files into a folder, to be changed there."""
    for name in ("recipes", "base-images", "tests/images"):
        shutil.copytree(SHIPPED / name, folder / name)
    shutil.copy(SHIPPED / "matrix.yaml", folder)
    return folder


def write_project(root: Path, *, recipes: int, bases: int) -> int:
    """Write a project below `root`; the number of its cells."""
    for folder in ("recipes", "base-images"):
        (root / folder).mkdir(parents=True)
    shutil.copytree(SHIPPED / "tests/images", root / "tests/images")
    names = [f"system{number}" for number in range(bases)]
    axes = {"arch": list(ARCHITECTURES), "base": names, "cuda": ["none"], "mpi": list(MPIS)}
    _write(root / "matrix.yaml", {"axes": axes, "inherit": False})
    for number in range(recipes):
        _write(root / "recipes" / f"{_name(number)}.yaml", _recipe(number))
    for number, name in enumerate(names):
        _write(root / "base-images" / f"{name}.yaml", _base(number, name))
    return recipes * bases * len(MPIS) * len(ARCHITECTURES)


def _write(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False, width=100))


def _name(number: int) -> str:
    return f"family{number}" if number < _FAMILIES else f"program{number}"


def _recipe(number: int) -> dict[str, object]:
    parent = {} if number < _FAMILIES else {"parent": _name(number % _FAMILIES)}
    steps = _toolchain(number) if not parent else _program(number)
    return {
        "recipe": _name(number),
        "version": f"1.{number}",
        "about": f"program {number} and what it needs",
        **parent,
        "development": steps,
        "runtime": [{"packages": {"ospackages": [f"runtime{number}", "{{ mpi.runtime }}"]}}],
        "environment": {
            f"PROGRAM{number}_HOME": f"/opt/program{number}",
            f"PROGRAM{number}_MPI": "{{ mpi.family }}-{{ mpi.version }} on {{ base.name }}",
        },
        "labels": {f"org.example.program{number}": "{{ recipe.name }} for {{ arch }}"},
        "checks": ["architecture"] if parent else ["mpi"],
    }


def _toolchain(number: int) -> list[object]:
    return [
        {"gnu": {"cc": True, "cxx": True, "fortran": True}},
        {"python": {"python2": False, "python3": True}},
        {"packages": {"ospackages": ["make", f"library{number}-dev"]}},
        {"ucx": {"version": f"1.1{number}.0", "cuda": False, "gdrcopy": False, "knem": False}},
        {"mpi": {"routes": ["package"]}},
    ]


def _program(number: int) -> list[object]:
    return [
        {"cmake": {"eula": True, "version": f"3.{10 + number % 20}.1"}},
        {"hdf5": {"version": f"1.14.{number % 4}", "configure_opts": [f"--with-x{number}"]}},
        {"fftw": {"version": "3.3.10", "prefix": f"/opt/fftw{number}", "mpi": True}},
        {"boost": {"version": f"1.{70 + number % 15}.0", "prefix": f"/opt/boost{number}"}},
        {"packages": {"ospackages": [f"program{number}-dev", "{{ mpi.development }}"]}},
        {"shell": {"commands": [f"make -C /src/program{number} ARCH={{{{ arch }}}}", "ldconfig"]}},
    ]


def _base(number: int, name: str) -> dict[str, object]:
    return {
        "base": name,
        "about": f"System {number}",
        "distribution": "ubuntu",
        "version": f"24.{number}",
        "hpccm": f"ubuntu{(20, 22, 24)[number % 3]}",
        "architectures": list(ARCHITECTURES),
        "references": {arch: f"registry.example/{arch}/system:{number}" for arch in ARCHITECTURES},
        "prepare": [f"echo repository{number} > /etc/apt/sources.list"],
        "mpi": {"openmpi": _mpi("openmpi", "4.1", number), "mpich": _mpi("mpich", "4.0", number)},
    }


def _mpi(family: str, release: str, number: int) -> dict[str, object]:
    return {
        "version": f"{release}.{number}",
        "development": [f"lib{family}-dev", f"{family}-bin{number}"],
        "runtime": [f"{family}-bin{number}"],
    }
