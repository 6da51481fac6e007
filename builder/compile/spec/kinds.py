"""The kinds of arguments that blocks take, in the words of error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOOLEAN, TEXT, LIST, MAPPING = "true or false", "text", "a list of texts", "a mapping"
FLAG = "true, false or text"
TEXT_OR_LIST = "text or a list of texts"
TEXT_OR_NUMBER = "text or a whole number"
TOOLCHAIN = "a toolchain"

OPEN_PREFIXES = ("enable_", "disable_", "with_", "without_")  # of hpccm.templates.ConfigureMake


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """What a block takes. `documented` are the arguments that its own documentation lists.

    `kinds` has the kind of every argument, in words; `defaults` the texts that are taken where an
    argument is left out. A block with `features` takes any option of `configure` as well.
    """

    kinds: Mapping[str, str]
    documented: Sequence[str]
    defaults: Mapping[str, str]
    features: bool

    def takes(self, argument: str) -> bool:
        """Return whether it takes an argument of that name."""
        feature = self.features and argument.startswith(OPEN_PREFIXES)
        return feature or argument in self.kinds

    def kind(self, argument: str) -> str:
        """What an argument must be, in words; `TEXT` where nothing says more."""
        return self.kinds.get(argument) or (FLAG if argument.startswith(OPEN_PREFIXES) else TEXT)
