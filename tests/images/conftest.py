"""A finished image as fixtures: pytest tests/images --image out/IDENTIFIER [--runner NAME]

`inside` runs commands in the image, once in each format, or by each runner that is named. Files
of a site's own belong into tests/images/site/; see docs/checks.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from builder.build.at_work import at_work
from builder.build.engines import Tools
from builder.model import FAILED, SKIPPED, Outcome
from builder.model.errors import BadInput
from builder.model.manifest import InImageCheck
from builder.system.home import Home
from builder.system.host_facts import host_facts
from builder.system.process import Completed, Processes
from builder.verify.checks import environment_of, outcome_of, why_no_gpu
from builder.verify.finished_images import OpenImage, check_runners, opened, read_finished
from builder.verify.proof import withheld
from builder.verify.runners import DEFAULTS, RUNNERS
from builder.verify.runners.protocol import Container, Kind, Runner

NO_IMAGE = "no image was named: pytest tests/images --image out/IDENTIFIER"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("images")
    group.addoption("--image", type=Path, metavar="PATH", help="an image's folder: out/IDENTIFIER")
    group.addoption(
        "--runner",
        action="append",
        choices=tuple(RUNNERS),
        help="run its checks by this program alone (may be repeated; default: one a format)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each runner, and for each check that the image carries."""
    names, checks = _found(metafunc.config)
    if "inside" in metafunc.fixturenames:
        metafunc.parametrize("inside", names, indirect=True, scope="session")
    if "check" in metafunc.fixturenames:
        metafunc.parametrize("check", checks)


def _found(config: pytest.Config) -> tuple[list[object], list[object]]:
    """The names of the runners and of the checks; one that is skipped if there is no image."""
    folder = config.getoption("--image", None)
    if folder is None:
        none = pytest.param("none", marks=pytest.mark.skip(reason=NO_IMAGE))
        return [none], [none]
    try:
        manifest = read_finished(folder)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error
    named = config.getoption("--runner") or [DEFAULTS[name] for name in manifest.artifacts]
    return list(named), [one.name for one in manifest.in_image_checks]


@dataclass(frozen=True, kw_only=True)
class Inside:
    """An image in which commands are run, by one runner."""

    image: OpenImage
    kind: Kind
    gpu: bool
    _container: Container
    _runner: Runner

    def run(self, *argv: str, timeout_s: float = 60) -> Completed:
        """Run a command in the image; the caller reads `returncode`, `stdout` and `stderr`."""
        return self._runner.run(argv, timeout_s=timeout_s)

    def environment(self) -> Outcome:
        """The harness's own check of the variables and the working directory."""
        return environment_of(self.image.target, self.kind, self._runner, gpu=self.gpu)

    def withheld(self) -> tuple[Outcome, ...]:
        """The negative control in a container without the GPUs; none where there are no GPUs."""
        return withheld(self.image.target, self.kind, self._container)

    def check(self, name: str) -> Outcome:
        """Run one of the image's own checks."""
        return outcome_of(self._declared(name), self._runner)

    def _declared(self, name: str) -> InImageCheck:
        return next(one for one in self.image.target.checks if one.name == name)


@pytest.fixture(scope="session")
def tools() -> Iterator[Tools]:
    """This machine's programs; held against other builders' cleaning."""
    made = Tools(processes=Processes(), home=Home.of_environment())
    with at_work(made, Path.cwd(), lambda _text: None):
        yield made


@pytest.fixture(scope="session")
def image(request: pytest.FixtureRequest) -> Iterator[OpenImage]:
    """The image that --image names, its artifacts compared with the manifest's digests."""
    folder = request.config.getoption("--image", None)
    if folder is None:
        pytest.skip(NO_IMAGE)
    with opened(folder.absolute(), request.getfixturevalue("tools")) as found:
        check_runners(found.artifacts, request.config.getoption("--runner") or ())
        yield found


@pytest.fixture(scope="session")
def inside(request: pytest.FixtureRequest) -> Iterator[Inside]:
    """The image, running in one format: started once, and gone afterwards."""
    image, tools = request.getfixturevalue("image"), request.getfixturevalue("tools")
    kind = RUNNERS[request.param]
    if not tools.has(kind.program):
        pytest.skip(f"{kind.program} is not on this machine")
    gpu = not why_no_gpu(image.target, kind, host=host_facts(), tools=tools)
    container = Container(
        artifact=image.artifacts[kind.format].path,
        work=image.work,
        tools=tools,
        directory=image.target.directory,
        gpu=gpu,
    )
    with kind.open(container) as runner:
        yield Inside(image=image, kind=kind, gpu=gpu, _container=container, _runner=runner)


@pytest.fixture
def expect(record_property: object) -> object:
    """Hands an outcome to pytest: a skipped check is a skipped test, with its reason."""
    assert callable(record_property)

    def judged(outcome: Outcome) -> None:
        for name, value in {"finding": outcome.reason, **outcome.data}.items():
            record_property(name, value)
        if outcome.outcome == SKIPPED:
            pytest.skip(outcome.reason)
        if outcome.outcome == FAILED:
            pytest.fail(f"{outcome.reason}\n{outcome.output}".rstrip(), pytrace=False)

    return judged
