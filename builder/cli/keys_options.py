"""The options of `build-images keys`; declared without what signs, so that commands start fast."""

from __future__ import annotations

from builder.cli.arguments import Commands, a_path, command, common_options

ABOUT = """\
Make a pair of keys (ECDSA on P-256): PREFIX.key, encrypted as cosign does it, and PREFIX.pub, which
sites put into their policy. The password is taken from the environment variable COSIGN_PASSWORD, or
asked for on the terminal; it may be empty. Files that are there are never written over.
"""


def declare(commands: Commands) -> None:
    """The command's options."""
    keys = command(commands, "keys", "make a pair of keys to sign images with", [common_options()])
    keys.description = ABOUT
    keys.add_argument("kind", metavar="generate", choices=("generate",), help="what to do")
    keys.add_argument(
        "--output",
        "-o",
        type=a_path,
        metavar="PREFIX",
        default="cosign",
        help="default: cosign, in this folder",
    )
