"""Many images are built if that is meant: by a word, or by an answer."""

from __future__ import annotations

import io
import sys

import pytest

from builder.cli.build import MANY, check_number
from builder.model.cells import Selection
from builder.model.errors import BadInput

ONE_ARCH = Selection(patterns={"arch": ("x86_64",)})
EVERYTHING = Selection(patterns={"arch": ("x86_64",)}, everything=True)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, answer: str = "") -> Terminal:
    """Somebody who gives an answer; what was asked, later."""
    asked = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", asked)
    return asked


@pytest.mark.parametrize(
    ("selection", "number"),
    [(ONE_ARCH, MANY), (EVERYTHING, 141), (Selection(), 141), (Selection(images=("*",)), 2)],
)
def test_what_was_said_is_not_asked(
    selection: Selection, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = terminal(monkeypatch)
    check_number(selection, number)
    assert asked.getvalue() == ""


ONE_RECIPE = Selection(patterns={"recipe": ("fftw",)})


@pytest.mark.parametrize("selection", [ONE_ARCH, Selection(), Selection(images=("*",))])
def test_emulation_that_was_asked_for_is_not_asked_about(
    selection: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = terminal(monkeypatch)
    check_number(selection, 3, ["aarch64"])
    assert asked.getvalue() == ""


def test_emulation_that_no_selector_names_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = terminal(monkeypatch, "n\n")
    with pytest.raises(BadInput, match="nothing was built"):
        check_number(ONE_RECIPE, 3, ["aarch64", "ppc64le"])
    assert "some under emulation (aarch64, ppc64le: no --arch was given)" in asked.getvalue()
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    check_number(ONE_RECIPE, 3, ["aarch64"])  # a script is not asked


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_yes_builds_them(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = terminal(monkeypatch, answer)
    check_number(ONE_ARCH, 141)
    assert "141 images are to be built. Continue?" in asked.getvalue()


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "141\n"])
@pytest.mark.parametrize("selection", [ONE_ARCH, Selection(images=("*",))])
def test_all_else_builds_none(
    answer: str, selection: Selection, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal(monkeypatch, answer)
    with pytest.raises(BadInput, match="nothing was built") as refused:
        check_number(selection, 141)
    assert "--all" in refused.value.hint


def test_without_a_terminal_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(BadInput, match="141 images are to be built") as refused:
        check_number(ONE_ARCH, 141)
    assert "--all" in refused.value.hint
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BadInput):
        check_number(ONE_ARCH, MANY + 1)
