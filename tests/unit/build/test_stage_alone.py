"""One stage of a Dockerfile alone, on images that the others are."""

from __future__ import annotations

import pytest

from builder.build.stages import on_images, stage_alone

TEXT = """\
# header

FROM base:1 AS one-development

RUN one


FROM one-development AS two-development

COPY --from=one-development /a /a

RUN two


FROM base:1 AS runtime

COPY --from=two-development /b /b
RUN --mount=type=bind,from=one-development,target=/x true
CMD ["/bin/bash"]
"""
BUILT = {"one-development": "stage:1", "two-development": "stage:2"}


def test_the_first_stage_stands_on_the_base() -> None:
    assert stage_alone(TEXT, "one-development", {}) == "FROM base:1 AS one-development\n\nRUN one\n"


def test_a_stage_stands_on_the_image_of_the_one_before() -> None:
    assert stage_alone(TEXT, "two-development", {"one-development": "stage:1"}) == (
        "FROM stage:1 AS one-development\n\n"
        "FROM stage:1 AS two-development\n\n"
        "COPY --from=one-development /a /a\n\nRUN two\n"
    )


def test_the_last_stage_copies_from_images() -> None:
    assert stage_alone(TEXT, "runtime", BUILT) == (
        "FROM stage:1 AS one-development\n\n"
        "FROM stage:2 AS two-development\n\n"
        "FROM base:1 AS runtime\n\n"
        "COPY --from=two-development /b /b\n"
        "RUN --mount=type=bind,from=one-development,target=/x true\n"
        'CMD ["/bin/bash"]\n'
    )


def test_steps_that_are_lent_native_tools_are_told_apart_from_others() -> None:
    one, runtime = (
        stage_alone(TEXT, name, BUILT, native="abc") for name in ("one-development", "runtime")
    )
    label = "LABEL build-images.native=abc"
    assert one == f"FROM base:1 AS one-development\n{label}\n\nRUN one\n"
    assert f"FROM base:1 AS runtime\n{label}\n\nCOPY" in runtime
    assert runtime.count(label) == 1


def test_a_stage_that_is_not_there() -> None:
    with pytest.raises(LookupError, match="no stage three"):
        stage_alone(TEXT, "three", BUILT)


def test_stages_start_from_images_under_other_names() -> None:
    text = on_images(TEXT, {"base:1": "localhost/base:2"})
    assert text.count("FROM localhost/base:2 AS ") == 2
    assert text.replace("localhost/base:2", "base:1") == TEXT
