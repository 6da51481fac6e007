"""A real registry on loopback, Debian's docker-registry, with TLS and a password if wanted."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

USER, PASSWORD = "someone", "right secret"
_BCRYPT = "$2b$04$abcdefghijklmnopqrstuu1iADil1L/Xaxw.oin1RA9CzSn0zGPMS"  # of the password
_CONFIGURATION = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
http:
  addr: "127.0.0.1:{port}"
{tls}storage:
  filesystem: {{rootdirectory: {root}}}
  delete: {{enabled: true}}
{auth}"""
_MEMORY = Path("/dev/shm")
_ENOUGH = 2 << 30
_TLS = "  tls: {{certificate: {folder}/cert.pem, key: {folder}/key.pem}}\n"
_AUTH = "auth: {{htpasswd: {{realm: tests, path: {folder}/htpasswd}}}}\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class RealRegistry:
    """A registry that runs. `authority` is the certificate that clients have to trust."""

    host: str
    store: Path
    authority: Path | None = None
    process: subprocess.Popen[bytes]

    @property
    def environment(self) -> dict[str, str]:
        """What `build-images` needs in its environment."""
        login = {
            "BUILD_IMAGES_REGISTRY": self.host,
            "BUILD_IMAGES_REGISTRY_USER": USER,
            "BUILD_IMAGES_REGISTRY_PASSWORD": PASSWORD,
        }
        return {**login, "SSL_CERT_FILE": str(self.authority)} if self.authority else {}


@contextlib.contextmanager
def real_registry(
    folder: Path, *, secured: bool = False, auth: str = _AUTH, in_memory: bool = False
) -> Iterator[RealRegistry]:
    """Start a registry below a folder; `secured` with TLS and a password, or another `auth`.

    `in_memory` is for small images: the registry syncs each of its files to the disk.
    """
    with in_memory_or(folder / "store") if in_memory else nullcontext(folder / "store") as store:
        yield from _serving(folder, store, secured=secured, auth=auth)


@contextlib.contextmanager
def in_memory_or(folder: Path) -> Iterator[Path]:
    """A folder in memory, or `folder` where memory has no room (in a container it is 64 MB)."""
    if not (_MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH):
        yield folder
        return
    with tempfile.TemporaryDirectory(dir=_MEMORY, prefix="of-tests.") as name:
        yield Path(name)


def _serving(folder: Path, store: Path, *, secured: bool, auth: str) -> Iterator[RealRegistry]:
    folder.mkdir(parents=True, exist_ok=True)
    if secured:
        _certificate(folder)
        (folder / "htpasswd").write_text(f"{USER}:{_BCRYPT}\n")
    port, process = _started(folder, store, secured=secured, auth=auth)
    try:
        yield RealRegistry(
            host=f"127.0.0.1:{port}",
            store=store,
            authority=folder / "cert.pem" if secured else None,
            process=process,
        )
    finally:
        process.terminate()
        process.wait()


def _started(
    folder: Path, store: Path, *, secured: bool, auth: str
) -> tuple[int, subprocess.Popen[bytes]]:
    """A registry at a port of its own: one that was free may be taken a moment later."""
    for _ in range(5):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "config.yml").write_text(
            _CONFIGURATION.format(
                port=port,
                root=store,
                tls=_TLS.format(folder=folder) if secured else "",
                auth=auth.format(folder=folder) if secured else "",
            )
        )
        with (folder / "registry.log").open("wb") as log:
            process = subprocess.Popen(
                ["docker-registry", "serve", str(folder / "config.yml")],
                stdout=log,
                stderr=log,
                env=go_environment(),
            )
        if _answers(port, process):
            return port, process
    raise RuntimeError(f"docker-registry does not answer: {folder / 'registry.log'}")


def go_environment() -> dict[str, str]:
    """The environment of a registry, half of whose processor time is garbage collection else."""
    return {**os.environ, "GOGC": "400"}


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether it is this registry that answers; if not, it ends."""
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            time.sleep(0.1)  # if another process has the port, it is about to give up
            return process.poll() is None
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    process.terminate()
    process.wait()
    return False


def _certificate(folder: Path) -> None:
    """A certificate for 127.0.0.1 that vouches for itself."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=registry of tests"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    ssl.create_default_context(cafile=folder / "cert.pem")  # it can be read
