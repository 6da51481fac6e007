"""`build-images reproduce` refuses what it cannot build again, and says what to do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from manifest_samples import document
from samples import ROOT, a_file, recipe, tar_bytes
from test_again import MANIFEST
from test_proving import TREE, Unpacks, write_formats
from test_repack import exported
from test_stages import Site, made_site  # noqa: F401 - a fixture

from builder.artifacts.oci import finish_layout, read_layout, start_layout
from builder.build.engines import DockerfileBuild, Tools
from builder.build.run import BuildSettings, Run
from builder.cli import main, reproduce
from builder.model import PlannedImage
from builder.model.errors import BadInput
from builder.system.home import Home
from builder.system.orphans import MARK
from builder.system.terminal import Progress
from builder.verify import reproduction
from builder.verify.reproduction import Comparison, build_again

Capture = pytest.CaptureFixture[str]
LIBC = {"name": "libc", "version": "2.35"}
STATUS = """\
Package: libc
Status: install ok installed
Architecture: amd64
Version: 2.36
"""
IMAGE = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
CELL = {
    "recipe": "hpc-base",
    "recipe_version": "1.0",
    "base": "debian13",
    "cuda": "none",
    "mpi": "openmpi5.0",
    "arch": "x86_64",
    "flavour": "runtime",
    "cpu": "generic",
}


def refusal(out: Path, capsys: Capture, name: str = IMAGE, **changes: Any) -> str:
    """What is said of an image whose manifest was changed so."""
    inputs = {"source_date_epoch": 1, "base": {"digest": "sha256:0", "key": "", "made": ""}}
    manifest = document({**MANIFEST, "image": IMAGE, "cell": CELL, "inputs": inputs, **changes})
    (out / IMAGE).mkdir()
    (out / IMAGE / "manifest.json").write_text(json.dumps(manifest))
    assert main(["reproduce", name, "--project", str(ROOT), "--output", str(out)]) == 2
    return capsys.readouterr().err


def content_key(capsys: Capture) -> str:
    main(["plan", "--image", IMAGE, "--json", "--project", str(ROOT)])
    [image] = json.loads(capsys.readouterr().out)["images"]
    return str(image["content_key"])


@pytest.mark.parametrize(
    ("name", "changes", "texts"),
    [
        (IMAGE.replace("hpc", "hcp"), {}, ["no such image at this path", f"did you mean {IMAGE}?"]),
        (
            IMAGE,
            {"inputs": {}},
            ["reproduced\n  hint: build it again: build-images --no-cache --image"],
        ),
        (IMAGE, {"image": "gone-1.0-x86_64"}, ["has no such image any more"]),
        (IMAGE, {}, ["changed since it was built", "use the project as it was then"]),
    ],
)
def test_what_cannot_be_built_again_is_refused(
    name: str, changes: dict[str, Any], texts: list[str], tmp_path: Path, capsys: Capture
) -> None:
    error = refusal(tmp_path, capsys, name, **changes)
    assert [text for text in texts if text not in error] == []


def test_an_image_without_its_base(tmp_path: Path, capsys: Capture) -> None:
    error = refusal(tmp_path, capsys, content_key=content_key(capsys))
    assert "debian13-x86_64.oci.tar: not the base of the image" in error


@pytest.mark.parametrize("option", ["--no-native-tools", "--offline"])
def test_it_is_built_again_as_is_asked(
    option: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = list[BuildSettings]()

    def note(*given: Any) -> None:
        settings.append(given[3])
        raise BadInput("noted")

    monkeypatch.setattr("builder.cli.reproduce.build_again", note)
    refusal(tmp_path, capsys, content_key=content_key(capsys))
    main(["reproduce", str(tmp_path / IMAGE), "--project", str(ROOT), option])
    one, other = ((each.native_tools, each.offline) for each in settings)
    assert one == (True, False)
    assert other == (option != "--no-native-tools", option == "--offline")


class Again:
    """An image that a made-up engine built, and that is built again."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self.settings = site, list[BuildSettings]()
        self.cleaned, self.runs = list[bool](), list[Run]()
        site.recipes = [recipe("one")]
        [self.spec] = site.specs()
        self.manifest = site.job().manifests[self.spec.image.identifier]
        self.folder = site.root / "out" / self.manifest.image
        self.base = self.folder / "debian13-x86_64.oci.tar"
        self.base.write_bytes(index_of("sha256:1"))
        monkeypatch.setenv("BUILD_IMAGES_HOME", str(site.home.path))
        monkeypatch.setitem(vars(reproduction)["ENGINES"], "fake", lambda _tools: site.engine)
        monkeypatch.setattr(reproduction, "prepare", self.prepare)
        monkeypatch.setattr(site.engine, "build", self.build)
        monkeypatch.setattr(site.engine, "clean", lambda: self.cleaned.append(True))
        site.said.truncate(0)

    def prepare(
        self,
        settings: BuildSettings,
        progress: Progress,
        images: Sequence[PlannedImage],
        **more: Any,
    ) -> Run:
        assert [image.identifier for image in images] == [self.manifest.image]
        assert (more["todo"], more["bases"], progress.level) == (1, False, 0)
        self.settings.append(settings)
        self.runs.append(self.site.run(settings))
        return self.runs[-1]

    def build(self, build: DockerfileBuild) -> None:
        """Look at the home of the second build's own, and at what it builds."""
        [home] = self.site.home.work.glob("reproduce-*")
        assert build.context.is_relative_to(home)
        links = {name: (home / name).readlink() for name in ("native", "tools")}
        assert links == {name: self.site.home.path / name for name in links}
        assert (build.context / self.base.name).read_bytes() == self.base.read_bytes()
        assert (build.context / build.file).is_file()
        build.log.touch()

    def compare(self) -> Comparison:
        settings = BuildSettings(project=self.site.root / "project", out=Path("other"), jobs=3)
        progress = Progress(level=0)
        found = build_again(self.folder, self.manifest, self.spec, settings, progress)
        assert not [*self.site.home.work.glob("reproduce-*")]
        processes = self.runs[-1].tools.processes
        assert (self.cleaned.pop(), processes.stopping, [*processes.mark]) == (True, True, [MARK])
        return found


def index_of(digest: str) -> bytes:
    return tar_bytes(a_file("index.json", json.dumps({"manifests": [{"digest": digest}]})))


def test_an_image_is_built_again_in_a_home_of_its_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Again(site, monkeypatch)
    (again.folder / "sbom.cdx.json").write_text(json.dumps({"components": [LIBC]}))
    same = again.compare()
    digest = again.manifest.artifacts["oci"].digest
    assert (same.is_same, same.before, same.after) == (True, {"oci": digest}, {"oci": digest})
    assert (same.image, same.differences, same.packages) == (again.manifest.image, [], [])
    assert same.duration_s == round(same.duration_s, 1) < 60
    [used] = again.settings
    assert (used.formats, used.engine, used.epoch) == (("oci",), "fake", 946684800)
    assert (used.cache, used.verify, used.jobs) == (False, False, 3)

    def other(_image: PlannedImage, target: Path, *, log: Path) -> None:
        files = [a_file("etc/name", log.name), a_file("var/lib/dpkg/status", STATUS)]
        exported(target, files, config={}, history=[])

    monkeypatch.setattr(site.engine, "export", other)
    differs = again.compare()
    assert (differs.is_same, differs.before) == (False, {"oci": digest})
    assert differs.packages == ["libc 2.36, not 2.35"]
    assert [(one.where, one.path) for one in differs.differences] == [("layer 1", "/etc/name")]


def test_what_differs_from_the_manifest_is_not_built_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Again(site, monkeypatch)
    again.base.write_bytes(index_of("sha256:2"))
    with pytest.raises(BadInput, match="the base is sha256:2, but the manifest says sha256:1"):
        again.compare()
    again.base.write_bytes(index_of("sha256:1"))
    layer = read_layout(again.folder / "image.oci").layers[0]
    content = layer.read_bytes()
    layer.write_bytes(b"X" + content[1:])
    with pytest.raises(BadInput, match="its content does not match its name"):
        again.compare()
    layer.write_bytes(content)
    (again.folder / "image.oci").rename(again.folder / "gone")
    with pytest.raises(BadInput, match="the manifest names this artifact, but it is missing"):
        again.compare()
    start_layout(again.folder / "image.oci")
    finish_layout(again.folder / "image.oci", {"config": {}}, [])
    with pytest.raises(BadInput, match=", but the manifest says sha256:"):
        again.compare()
    layout = again.manifest.artifacts["oci"]
    artifacts = dict.fromkeys(("sif", "charliecloud"), layout)
    again.manifest = replace(again.manifest, artifacts=artifacts)
    with pytest.raises(BadInput, match=r"image\.tar\.gz: the manifest names this artifact, but it"):
        again.compare()
    assert again.settings == []


def test_tarballs_are_compared_where_the_layers_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tools, "which", lambda _tools, name: name)
    tools = Tools(processes=Unpacks(b""), home=Home(path=tmp_path))
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
        write_formats(folder)
    tarball = after / "image.tar.gz"
    tarball.write_bytes(gzip.compress(tar_bytes(*TREE, a_file("bin/more", "x"))))
    paths = {"oci": after / "image.oci", "charliecloud": tarball}
    [difference] = reproduction._differences(before, paths, tools)
    assert (difference.where, difference.path) == ("tarball", "/bin/more")
    (before / "sbom.cdx.json").write_text(json.dumps({"components": [LIBC]}))
    bill = {"components": [{**LIBC, "version": "2.36"}, {"name": "more", "version": "1"}]}
    packages = ["libc 2.36, not 2.35", "more 1, not none"]
    assert reproduction._changed_packages(before, bill) == packages
    assert reproduction._changed_packages(after, bill) == []


def test_the_result_as_text_and_as_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def said(result: Comparison, *more: str) -> tuple[int, str]:
        monkeypatch.setattr(reproduce, "build_again", lambda *_: result)
        code = main(["reproduce", IMAGE, "--project", str(ROOT), "--output", str(tmp_path), *more])
        return code, capsys.readouterr().out

    refusal(tmp_path, capsys)  # leaves the image's folder
    monkeypatch.setattr(reproduce, "unchanged_spec", lambda *_: None)
    before = {"oci": "sha256:1", "charliecloud": "sha256:2"}
    comparison = Comparison(
        image=IMAGE,
        before=before,
        after={**before, "oci": "sha256:3"},
        differences=[],
        packages=[f"package{n} 2, not 1" for n in range(7)],
        duration_s=12.3,
    )
    packages = "; ".join(comparison.packages[:5])
    code, text = said(comparison)
    assert code == 1
    assert text.splitlines() == [
        f"✗ {IMAGE}  built again in 12 s: it differs",
        "    oci          sha256:3, not sha256:1",
        "    charliecloud sha256:2",
        f"  7 packages of another version: {packages}; and 2 more",
    ]
    same = replace(comparison, after=before, packages=[])
    code, text = said(same)
    assert code == 0
    assert text.startswith(f"✓ {IMAGE}  built again in 12 s: the same\n")
    assert json.loads(said(same, "--json")[1])["reproduced"] is True
    assert json.loads(said(comparison, "--json")[1]) == {
        "image": IMAGE,
        "reproduced": False,
        "artifacts": {
            "oci": {"before": "sha256:1", "after": "sha256:3"},
            "charliecloud": {"before": "sha256:2", "after": "sha256:2"},
        },
        "differences": [],
        "packages": list(comparison.packages),
        "duration_s": 12.3,
    }
