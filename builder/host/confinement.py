"""What confines container runtimes: their filters of system calls, AppArmor's profiles."""

from __future__ import annotations

import json
import re
from pathlib import Path

from builder.host.doctor import Roots
from builder.model.exact_json import part

_RESTRICTION = "sys/kernel/apparmor_restrict_unprivileged_userns"
_FILTERS = ("etc/containers/seccomp.json", "usr/share/containers/seccomp.json")
_ALLOWED, _NO_SUCH_CALL = "SCMP_ACT_ALLOW", (38, "ENOSYS")
_RULE = re.compile(r"^\s*userns\b", re.MULTILINE)
_ATTACHED = re.compile(r'^\s*(?:profile\s+\S+\s+)?"?((?:/|@\{)[^\s"]+)"?[^\n]*\{\s*$', re.MULTILINE)
_GLOB = re.compile(r"@\{\w+\}|\*\*|[*?{},]|[^@*?{},]+|@")
_GLOBS = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


def restricted_namespaces(roots: Roots) -> bool:
    """Return whether AppArmor lets only programs with a profile make user namespaces."""
    try:
        return (roots.proc / _RESTRICTION).read_text().strip() == "1"
    except OSError:
        return False


def has_profile(roots: Roots, program: Path) -> bool | None:
    """Return whether a profile lets a program make user namespaces; None if it cannot be read.

    https://gitlab.com/apparmor/apparmor/-/wikis/unprivileged_userns_restriction
    """
    folder = roots.etc / "apparmor.d"
    try:
        files = [file for file in folder.iterdir() if file.is_file()]
        texts = [file.read_text(errors="replace") for file in files if _is_on(folder, file)]
    except OSError:
        return None
    attached = [path for text in texts if _RULE.search(text) for path in _ATTACHED.findall(text)]
    names = (str(program), str(program.resolve()))
    return any(_pattern(path).fullmatch(name) for path in attached for name in names)


def _is_on(folder: Path, profile: Path) -> bool:
    return not (folder / "disable" / profile.name).is_symlink()


def _pattern(attachment: str) -> re.Pattern[str]:
    """An attachment as a pattern of paths; a variable, such as @{multiarch}, is anything."""
    return re.compile("".join(map(_part, _GLOB.findall(attachment))))


def _part(glob: str) -> str:
    return ".*" if glob.startswith("@{") else _GLOBS.get(glob) or re.escape(glob)


def allows_clone3(roots: Roots) -> bool | None:
    """Whether the filter of Podman and its kin lets clone3 through, or says that there is none.

    None if the file is not there: the filter is then the one that came with the program.
    """
    file = next((one for name in _FILTERS if (one := roots.top / name).is_file()), None)
    if file is None:
        return None
    try:
        return _answers_clone3(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _answers_clone3(document: dict[str, object]) -> bool:
    rules = [
        one
        for one in part(document, "syscalls") or []
        if "clone3" in one.get("names", []) and not part(one, "includes", "caps")
    ]
    if any(one.get("action") == _ALLOWED for one in rules):
        return True
    errors = [one.get("errno", one.get("errnoRet")) for one in rules]
    default = document.get("defaultErrno", document.get("defaultErrnoRet"))
    return all(one in _NO_SUCH_CALL for one in errors or [default])
