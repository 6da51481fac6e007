"""Small root file systems for the check `libraries`: sound ones, and what can be wrong in them.

Their programs and libraries are compiled here, by this machine's compiler.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "tests/images"
X86_64 = platform.machine() == "x86_64"
LIBRARIES = "usr/lib"
SMALL_PAGES = ("-Wl,-z,max-page-size=2048", "-Wl,-z,common-page-size=2048")
PROGRAMS = {
    "own": "int own(int x) { return x + 1; }",
    "changed": "int changed(int x) { return x; }",
    "user": "int own(int); int main(void) { return own(-1); }",
    "plugin": "int host_function(int); int plugin(int x) { return host_function(x); }",
    "opening": ('#include <dlfcn.h>\nint main(void) { return !dlopen("libnone.so.1", 2); }'),
    "provider": "int host_function(int x) { return x; } int main(void) { return 0; }",
    "lua": "".join(
        f"int lua_{n}(void); int use{n}(void) {{ return lua_{n}(); }}" for n in range(5)
    ),
    "fast": (
        "double total(const float *a, int n) { double s = 0; for (int i = 0; i < n; i++) s += a[i] "
        "* 2.5f; return s; } int main(int n, char **v) { float a[1000]; for (int i = 0; i < 1000; "
        "i++) a[i] = (float)(n * i); (void)v; return (int)total(a, 1000) & 1; }"
    ),
    "choosing": (
        '__attribute__((target_clones("default", "arch=x86-64-v4"))) double total(const float *a, '
        "int n) { double s = 0; for (int i = 0; i < n; i++) s += a[i]; return s; } int main(void) "
        "{ float a[100] = {1}; return (int)total(a, 100) & 1; }"
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """A root file system: the C library, a library `libown.so.1`, and a program that uses it."""

    path: Path
    built: Path

    def file(self, name: str) -> Path:
        return self.path / name

    def build(self, source: str, target: str, *options: str) -> Path:
        """Compile one of PROGRAMS into the root."""
        code = self.built / f"{source}.c"
        code.write_text(PROGRAMS[source] + "\n")
        path = self.file(target)
        path.parent.mkdir(parents=True, exist_ok=True)
        words = ["cc", "-O2", "-w", "-o", str(path), str(code), *options]
        subprocess.run(words, check=True)
        return path

    def library(self, source: str, name: str, *options: str) -> Path:
        soname = f"-Wl,-soname,{name}"
        return self.build(source, f"{LIBRARIES}/{name}", "-shared", "-fPIC", soname, *options)

    def using(self, source: str, target: str, *options: str) -> Path:
        """A program that is linked to `libown.so.1`."""
        allowed = ("-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined")
        library = str(self.file(f"{LIBRARIES}/libown.so.1"))
        return self.build(source, target, *allowed, library, *options)

    def script(self, name: str, text: str) -> None:
        path = self.file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def sound_root(folder: Path, built: Path) -> Root:
    """Make a sound root, with the check's program in it."""
    root = Root(path=folder, built=built)
    for name in ("usr/bin", "usr/local/bin", "opt", "etc", "proc", LIBRARIES):
        root.file(name).mkdir(parents=True, exist_ok=True)
    check = root.file("opt/libraries")
    options = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["cc", *options, "-o", check, SOURCES / "libraries.c"], check=True)
    linked = subprocess.run(["ldd", check], capture_output=True, text=True, check=True)
    for word in linked.stdout.split():
        if word.startswith("/"):
            target = root.file(word.lstrip("/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, target)
    root.library("own", "libown.so.1")
    root.using("user", "usr/bin/user")
    root.script("usr/bin/script", "#!/usr/bin/user\n")
    return root


def command(root: Root, cpu: str = "generic", route: str = "none") -> list[str]:
    """What runs the check in a root file system that it takes for its own."""
    argv = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    return [*argv, f"--root={root.path}", "--wd=/", "/opt/libraries", route, cpu]


def patched(offset: int, data: bytes) -> Callable[[Root], None]:
    def patch(root: Root) -> None:
        path = root.file("usr/bin/user")
        content = bytearray(path.read_bytes())
        content[offset : offset + len(data)] = data
        path.write_bytes(content)

    return patch


def without_interpreter(root: Root) -> None:
    """The program header PT_INTERP becomes PT_NULL."""
    path = root.file("usr/bin/user")
    content = bytearray(path.read_bytes())
    start, count = int.from_bytes(content[32:40], "little"), content[56]
    for n in range(count):
        at = start + 56 * n
        if content[at] == 3:
            content[at] = 0
    path.write_bytes(content)


def cut_off(root: Root) -> None:
    path = root.file(f"{LIBRARIES}/libown.so.1")
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def another_version(root: Root) -> None:
    script = root.built / "map"
    script.write_text("OWN_2.0 { global: own; };\n")
    root.library("own", "libown.so.1", f"-Wl,--version-script={script}")
    root.using("user", "usr/bin/user")
    script.write_text("OWN_1.0 { global: own; };\n")
    root.library("own", "libown.so.1", f"-Wl,--version-script={script}")


def below_opt(root: Root) -> None:
    root.using("user", "opt/tool/bin/tool", "-Wl,-rpath,/opt/none")
    root.file(f"{LIBRARIES}/libown.so.1").rename(root.file("opt/libown.so.9"))


def script_by_env(root: Root) -> None:
    root.script("usr/bin/env", "#!/usr/bin/user\n")
    root.script("usr/bin/tool", "#!/usr/bin/env -S A=1 perl5.99 -w\n")


def script_before(root: Root) -> None:
    """Looking for the interpreter on PATH, the check goes through the same folders."""
    root.script("usr/bin/env", "#!/usr/bin/user\n")
    root.script("usr/local/bin/tool", "#!/usr/bin/env user\n")
    root.file(f"{LIBRARIES}/libown.so.1").rename(root.file("opt/old"))


def without_the_user(root: Root) -> None:
    root.file("usr/bin/user").unlink()
    root.file("usr/bin/script").unlink()


def extension(root: Root) -> None:
    root.using("own", "usr/lib/python3/dist-packages/x.so", "-shared", "-fPIC")
    root.file(f"{LIBRARIES}/libown.so.1").unlink()
    without_the_user(root)


def link_by_an_alternative(root: Root) -> None:
    root.file("etc/alternatives").mkdir()
    root.file("etc/alternatives/tool").symlink_to("/usr/bin/tool.1")
    root.file("usr/bin/tool").symlink_to("/etc/alternatives/tool")


def private_files(root: Root) -> None:
    """A program for its group alone, and a library of no folder that the loader searches."""
    root.using("user", "usr/bin/launch-helper").chmod(0o750)
    root.build("own", f"{LIBRARIES}/private/libx.so", "-shared", "-fPIC").chmod(0o600)


Plant = Callable[[Root], object]

DEFECTS: dict[str, tuple[Plant, str]] = {
    "a library is missing": (
        lambda root: root.file(f"{LIBRARIES}/libown.so.1").rename(root.file("opt/old")),
        "/usr/bin/user needs libown.so.1, which is not in the image",
    ),
    "a library below /opt is missing": (below_opt, "/opt/tool/bin/tool needs libown.so.1"),
    "a symbol that the library does not have": (
        lambda root: root.library("changed", "libown.so.1"),
        "/usr/bin/user needs the symbol own, which no library of it has",
    ),
    "a symbol that a library needs": (
        lambda root: root.library("plugin", "libplanted.so.1"),
        "/usr/lib/libplanted.so.1 needs the symbol host_function",
    ),
    "a version that the library does not have": (
        another_version,
        "/usr/bin/user needs version OWN_2.0 of libown.so.1, which /usr/lib/libown.so.1",
    ),
    "a library that is cut off": (cut_off, "/usr/lib/libown.so.1 is cut off"),
    "another system": (patched(7, b"\x09"), "/usr/bin/user is for another system than Linux"),
    "no interpreter": (without_interpreter, "/usr/bin/user has no program interpreter"),
    "an interpreter that is missing": (
        lambda root: root.using("user", "usr/bin/user", "-Wl,-dynamic-linker,/lib/ld-none.so.2"),
        "/usr/bin/user needs the interpreter /lib/ld-none.so.2",
    ),
    "a script without its interpreter": (
        lambda root: Root.script(root, "usr/local/bin/tool", "#!/usr/bin/perl5.99 -w\n"),
        "/usr/local/bin/tool begins with #!/usr/bin/perl5.99, which is not in the image",
    ),
    "a script by env": (
        script_by_env,
        "/usr/bin/tool is started by perl5.99, which is not on PATH",
    ),
    "a program for smaller pages": (
        lambda root: root.using("user", "usr/bin/user", *SMALL_PAGES),
        "/usr/bin/user is laid out for memory pages of 2048 bytes",
    ),
    "a library for smaller pages": (
        lambda root: root.library("own", "libown.so.1", *SMALL_PAGES),
        "/usr/lib/libown.so.1 is laid out for memory pages of 2048 bytes",
    ),
    "a program in a later folder than a script by env": (
        script_before,
        "/usr/bin/user needs libown.so.1",
    ),
    "a script whose interpreter is a folder": (
        lambda root: Root.script(root, "usr/bin/tool", "#!/usr/bin\n"),
        "/usr/bin/tool begins with #!/usr/bin, which is not in the image",
    ),
    "a library that is loaded before all others": (
        lambda root: root.file("etc/ld.so.preload").write_text("# all\n/usr/lib/libgone.so\n"),
        "/etc/ld.so.preload names /usr/lib/libgone.so, which is no library of the image",
    ),
    "a library that users cannot read": (
        lambda root: root.file(f"{LIBRARIES}/libown.so.1").chmod(0o600),
        "/usr/lib/libown.so.1 cannot be read by users",
    ),
    "a link on PATH that leads nowhere": (
        lambda root: root.file("usr/bin/tool").symlink_to("tool.1"),
        "/usr/bin/tool is a link to tool.1, which is not in the image",
    ),
    "a link on PATH to an alternative that is gone": (
        link_by_an_alternative,
        "/usr/bin/tool is a link to /etc/alternatives/tool, which is not in the image",
    ),
    "an extension of Python": (
        extension,
        "/usr/lib/python3/dist-packages/x.so needs libown.so.1",
    ),
}
OF_X86_64: dict[str, tuple[Plant, str]] = {
    "code for AVX-512": (
        lambda root: root.build("fast", "usr/local/bin/fast", "-O3", "-march=x86-64-v4"),
        "/usr/local/bin/fast is for processors of x86-64-v4, and the image is for x86-64",
    ),
    "code for AVX2": (
        lambda root: root.build("fast", "usr/bin/fast", "-O3", "-march=x86-64-v3"),
        "/usr/bin/fast is for processors of x86-64-v3, and the image is for x86-64",
    ),
    "a library that demands AVX-512": (
        lambda root: root.library("own", "libown.so.1", "-Wl,-z,x86-64-v4"),
        "/usr/lib/libown.so.1 is for processors of x86-64-v4",
    ),
}


def plugin(root: Root) -> None:
    root.build("provider", "usr/bin/provider", "-rdynamic")
    root.build("plugin", "opt/plugins/plugin.so", "-shared", "-fPIC")


def below_the_program(root: Root) -> None:
    root.using("user", "opt/tool/bin/tool", "-Wl,-rpath,$ORIGIN/../lib")
    root.file("opt/tool/lib").mkdir()
    root.file(f"{LIBRARIES}/libown.so.1").rename(root.file("opt/tool/lib/libown.so.1"))
    without_the_user(root)
    root.file("usr/bin/tool").symlink_to("/opt/tool/bin/tool")


def loaded_by_a_package(root: Root) -> None:
    packages = root.file("usr/local/lib/python3/dist-packages")
    root.using("own", "usr/local/lib/python3/dist-packages/x.so", "-shared", "-fPIC")
    (packages / "x.libs").mkdir()
    root.file(f"{LIBRARIES}/libown.so.1").rename(packages / "x.libs/libown.so.1")
    without_the_user(root)


def of_another_system(root: Root) -> None:
    patched(7, b"\xff")(root)
    root.file("usr/share").mkdir()
    root.file("usr/bin/user").rename(root.file("usr/share/code.go"))
    root.file("usr/bin/script").unlink()


SOUND: dict[str, Plant] = {
    "a symbol that a program gives its plugin": plugin,
    "a library of a program that is not there": lambda root: root.library("lua", "liblua-x.so.0"),
    "a library below the program": below_the_program,
    "a library that a package loads by itself": loaded_by_a_package,
    "a file of another system that nothing loads": of_another_system,
    "a static program": lambda root: root.build("provider", "usr/bin/static", "-static"),
    "files that are private": private_files,
    "a link on PATH to what a container has": lambda root: root.file("usr/bin/log").symlink_to(
        "/run/log"
    ),
    "an empty library that nothing needs": lambda root: Path.touch(
        root.file(f"{LIBRARIES}/libx.so.1")
    ),
    "a library that is loaded before all others": lambda root: root.file(
        "etc/ld.so.preload"
    ).write_text("libown.so.1 # ours\n/usr/lib/libown.so.1\n"),
    "a linker's script": lambda root: root.file(f"{LIBRARIES}/libx.so").write_text("INPUT(-lown)"),
    "a script without a first line": lambda root: Root.script(
        root, "usr/bin/old", "echo all is well\n"
    ),
}
SOUND_ON_X86_64: dict[str, Plant] = {
    "code that is chosen by the processor": lambda root: root.build(
        "choosing", "usr/local/bin/choosing", "-O3"
    ),
}
