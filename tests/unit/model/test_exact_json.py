"""JSON that two readers could understand differently, or that is none, is refused."""

from __future__ import annotations

import pytest

from builder.model.exact_json import parsed


@pytest.mark.parametrize("text", ['{"a": [1, -2.5, 1e3, null, true, "\\u00e4"]}', "5", '"a"'])
def test_what_is_json(text: str) -> None:
    assert parsed(text) == parsed(text.encode())


def test_numbers_and_texts_are_what_they_say() -> None:
    assert parsed('{"a": [1, -2.5, 1e3, "\\u00e4"]}') == {"a": [1, -2.5, 1000.0, "ä"]}


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": 1, "a": 1}', '{"b": {"a": 1, "a": 2}}', '[{"a": 1, "a": 1}]'),
        *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", '{"a": [1.0e+400]}'),
        *("", "{", "\ufeff{}", "[" * 100_000, "1" * 5000),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_refused(text: str) -> None:
    for one in (text, text.encode()):
        with pytest.raises(ValueError):  # noqa: PT011 - of several kinds, all of them this
            parsed(one)


@pytest.mark.parametrize("text", ["[[],[],[]]", '{"a":1,"b":{}}', '["a,b{"]', "[1,2,3,4]"])
def test_at_most_so_many_values(text: str) -> None:
    for one in (text, text.encode()):
        assert parsed(one, most=7) == parsed(one, most=None)
        with pytest.raises(ValueError, match="more than 2 values"):
            parsed(one, most=2)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32-be", "latin-1"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - a decoder's or a reader's
        parsed('{"ä": 1}'.encode(encoding))
