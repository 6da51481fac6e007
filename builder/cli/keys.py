"""`build-images keys`: create a key pair for signing, which cosign can use, too."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from builder.cli.options import Options, Parser, a_path
from builder.model.errors import BadInput
from builder.system.files import create_file
from builder.trust.proof.keys import PASSWORD, as_cosign_key, generate_key

_DESCRIPTION = """\
Create a key pair (ECDSA on P-256): PREFIX.key, encrypted in cosign's format, and PREFIX.pub, which
sites put into their policy. The password is read from the environment variable COSIGN_PASSWORD or
from the terminal; it may be empty. Existing files are never overwritten.
"""


class KeysOptions(Options):
    """The options of `keys`; `output` is the PREFIX of both files."""

    output: Path


def declare(parser: Parser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("kind", metavar="generate", choices=("generate",), help="what to do")
    text, names = "default: cosign, in this folder", ("--output", "-o")
    parser.add_argument(*names, type=a_path, metavar="PREFIX", default="cosign", help=text)


def run(options: KeysOptions) -> int:
    """Create a key pair; print both paths and the public key's fingerprint."""
    here = Path.cwd()
    if options.output.name in {"", ".."} or options.output in {here, *here.parents}:
        raise BadInput(
            f"{options.output}: this is a folder, not a PREFIX of files",
            hint="--output site makes site.key and site.pub",
        )
    name = options.output.name
    private, public = (options.output.with_name(f"{name}{end}") for end in (".key", ".pub"))
    for path in (private, public):
        if path.exists():
            problem = f"{path} already exists, and is not overwritten"
            raise BadInput(problem, hint="choose another PREFIX")
    os.stat(f"{private.parent}/")  # noqa: PTH116 - check the folder before asking for a password
    password = _password()
    key = generate_key()
    create_file(private, as_cosign_key(key, password.encode()), mode=0o600)
    try:
        create_file(public, key.public.pem, mode=0o644)
    except BaseException:  # half a pair would stand in the way of the next try
        private.unlink()
        raise
    print(f"private key  {private}\npublic key   {public}\nSHA-256      {key.public.fingerprint}")
    return 0


def _password() -> str:
    password = os.environ.get(PASSWORD)
    if password is not None:
        return password
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadInput(
            f"no password for the private key: {PASSWORD} is not set, and there is no terminal",
            hint=f"set {PASSWORD}; it may be empty",
        )
    try:
        password = getpass.getpass("password for the private key: ")
        if getpass.getpass("repeat the password: ") == password:
            return password
    except EOFError as error:
        raise BadInput("no password was entered; no key was created") from error
    raise BadInput("the two passwords differ; no key was created")
