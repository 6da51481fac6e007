"""Lists in messages: the first texts, and the number of the others."""

from __future__ import annotations

import pytest

from builder.model.errors import first_of


@pytest.mark.parametrize(
    ("number", "between", "text"),
    [
        (0, ", ", ""),
        (1, ", ", "a"),
        (2, ", ", "a, b"),
        (3, ", ", "a, b and 1 more"),
        (2, "; ", "a; b"),
        (4, "; ", "a; b; and 2 more"),
    ],
)
def test_of_many_the_first_are_told(number: int, between: str, text: str) -> None:
    assert first_of("abcd"[:number], 2, between) == text
