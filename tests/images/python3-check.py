"""Python 3 starts, and its standard library is there: each extension module can be imported.

Of the other modules, each that lies at the top of the library is looked for, from Python 3.10 on,
which has a list of them (`sys.stdlib_module_names`). What is below a package, and what a module
holds, is read only as far as something here imports it.

Exit status: 0 passed, else failed. The last line of standard output is the finding; a line
`data: {JSON}` stands before it.

Python 3.6 has to run it: Ubuntu 18.04 and CentOS 7 have no other.
"""

import importlib
import importlib.machinery
import importlib.util
import json
import sys
import sysconfig
from pathlib import Path

# What programs expect of a Python, whatever its packages are split into.
EXPECTED = (
    *("array", "bz2", "ctypes", "datetime", "decimal", "hashlib", "json", "lzma", "math"),
    *("multiprocessing", "pyexpat", "random", "select", "socket", "sqlite3", "ssl", "struct"),
    *("threading", "unicodedata", "uuid", "zlib"),
)
SHOWN = 5
# Tests of CPython's own, samples, and what opens windows and is of packages of its own.
OTHERS = ("_test", "_xx", "xx", "_tkinter", "_ctypes_test")
# Modules that the list names on every platform, and that a sound Python may lack.
OF_OTHER_SYSTEMS = (
    *("_msi", "_overlapped", "_scproxy", "_winapi", "_wmi", "msilib", "msvcrt", "nt", "winreg"),
    *("winsound",),
)
# Built only where a library is there: https://docs.python.org/3/using/configure.html
OPTIONAL = (
    *("_crypt", "_curses", "_curses_panel", "_dbm", "_gdbm", "_tkinter", "_uuid", "_zstd", "crypt"),
    *("nis", "ossaudiodev", "readline", "spwd"),
)
# Packages of their own in distributions.
SPLIT_OFF = (
    *("distutils", "ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtle", "turtledemo"),
    *("venv",),
)


def missing() -> "list[str]":
    """What the top of the standard library lacks; nothing before Python 3.10."""
    names = {*getattr(sys, "stdlib_module_names", ())}
    names -= {*OF_OTHER_SYSTEMS, *OPTIONAL, *SPLIT_OFF}
    return sorted(name for name in names if not is_there(name))


def is_there(name: str) -> bool:
    """Whether a module is found; a folder without `__init__.py` is no module of the library."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # one that runs, and says nothing of itself
        return True
    return spec is not None and spec.origin is not None


def extensions() -> "list[str]":
    """The names of all extension modules that lie beside the standard library."""
    places = [str(sysconfig.get_config_var("DESTSHARED") or "/nonexistent")]
    places += [path for path in sys.path if path.endswith("lib-dynload")]
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    files = [file.name for place in places for file in Path(place).glob("*")]
    names = {name.partition(".")[0] for name in files if name.endswith(suffixes)}
    return sorted(name for name in names if not name.startswith(OTHERS))


def why_not(name: str) -> str:
    """Why a module cannot be imported; empty if it can."""
    try:
        importlib.import_module(name)
    except Exception as error:
        return f"{name} ({type(error).__name__}: {error})"
    return ""


def wrong_results() -> "list[str]":
    """What modules compute wrongly, each through the library below it."""
    import hashlib  # noqa: PLC0415 - a missing library is a finding, not a traceback
    import sqlite3  # noqa: PLC0415
    import zlib  # noqa: PLC0415
    from xml.parsers import expat  # noqa: PLC0415

    text, seen = b"all is well" * 1000, []
    digest = hashlib.new("sha256", b"abc").hexdigest()
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, _attributes: seen.append(name)
    parser.Parse("<a><b/></a>", True)
    connection = sqlite3.connect(":memory:")
    [[total]] = connection.execute("select sum(n) from (select 1 as n union select 41)").fetchall()
    connection.close()
    checked = {
        "zlib": zlib.decompress(zlib.compress(text)) == text,
        "hashlib": digest.startswith("ba7816bf8f01cfea414140de5dae2223"),
        "expat": seen == ["a", "b"],
        "sqlite3": total == 42,
    }
    return sorted(name for name, is_right in checked.items() if not is_right)


def main() -> int:
    names = extensions()
    faults = [fault for fault in map(why_not, sorted({*EXPECTED, *names})) if fault]
    faults += [f"{name} (it is not there)" for name in missing() if name not in EXPECTED]
    version = sys.version.split()[0]
    print("data: " + json.dumps({"version": version, "extensions": len(names)}))
    if faults:
        more = f" and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        print(f"Python {version} cannot import {'; '.join(faults[:SHOWN])}{more}")
        return 1
    wrong = wrong_results()
    if wrong:
        print(f"Python {version} computes wrongly with {', '.join(wrong)}")
        return 1
    imported = len({*EXPECTED, *names})
    print(f"Python {version} imports {imported} modules, {len(names)} of them extensions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
