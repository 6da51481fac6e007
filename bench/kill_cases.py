"""The commands that are killed, and what is there before and after, for `kills`."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from killing import Case, Commands, commands
from made_releases import correct_evidence, make_images, make_project
from published import RECIPES, TAG, own_tags, repository, under
from pull_faults import FORMATS, is_whole
from real_registry import real_registry
from registry_site import Published, Site

from builder.artifacts.oci import read_layout
from builder.distribute.bundle import INPUTS, ArchiveContents, write_archive
from builder.distribute.bundle.inputs import Inputs, add_build, input_file
from builder.distribute.pull.receipts import read_receipt
from builder.model.digests import Descriptor, sha256_of_file
from builder.registry.manifests import BASE, PROJECT, SOURCES
from builder.sources.journals import Journals, ServedFile
from builder.system.home import Home
from builder.trust.proof.attestations import proofs
from builder.trust.proof.keys import PrivateKey

OLDER = b"an older archive"
WHO = "0" * 32
Words = Sequence[str | Path]


@dataclass(kw_only=True, slots=True)
class Pull:
    """An image into a folder."""

    form: str
    site: Site
    image: Published

    @property
    def name(self) -> str:
        return f"pull --format {self.form}"

    @property
    def out(self) -> Path:
        return self.site.place / "out"

    def fresh(self, at: int) -> Words:
        del at
        for place in (self.out, self.site.place / "home"):
            shutil.rmtree(place, ignore_errors=True)
        words: Words = ["pull", f"{self.site.registry}/site/tool:1.0", "--format", self.form]
        judged: Words = ["--policy", self.site.policy(), "--host", self.site.record()]
        return [*words, *judged, "--output", self.out]

    def killed(self) -> list[str]:
        there = self.out.exists()
        return ["half an image"] if there and not is_whole(self.out, self.image, self.form) else []

    def ended(self) -> list[str]:
        left = sorted(one.name for one in self.site.place.iterdir() if "out" in one.name)
        found = [] if left == ["out"] else [f"there is {left}"]
        return found or self.killed()


@dataclass(kw_only=True, slots=True)
class IntoRegistry:
    """Releases into a namespace that is empty, a new one each time; `words` is all but which."""

    name: str
    words: Words
    host: str
    recipes: Sequence[str]
    namespace: str = ""
    whole: dict[str, frozenset[str]] = field(default_factory=dict)

    def fresh(self, at: int) -> Words:
        self.namespace = f"{self.name.replace(' --', '-')}/at-{at}"
        return [*self.words, "--to", f"{self.host}/{self.namespace}"]

    def killed(self) -> list[str]:
        return [
            f"{tag} lacks {sorted(self.whole[tag] - there)}"
            for tag, there in self._tags().items()
            if there != self.whole[tag]
        ]

    def ended(self) -> list[str]:
        found = self._tags()
        self.whole = self.whole or found
        wanted = {f"{name}:{tag}" for name in self.recipes for tag in (TAG, "latest")}
        tags = [] if found.keys() == wanted else [f"tags: {sorted(found)}"]
        return tags or self.killed()

    def _tags(self) -> dict[str, frozenset[str]]:
        """What is there under each tag."""
        found = {}
        for name in self.recipes:
            registry = repository(self.host, name, self.namespace)
            known: dict[str, frozenset[str]] = {}
            for tag in sorted(own_tags(registry)):
                digest = registry.resolve(tag).digest
                known[digest] = known.get(digest) or under(registry, digest)
                found[f"{name}:{tag}"] = known[digest]
        return found


@dataclass(kw_only=True, slots=True)
class Archive:
    """An archive; `older` is what stands in its place before."""

    name: str
    words: Words
    folder: Path
    older: bytes = b""
    whole: tuple[str, int] = ("", 0)

    def fresh(self, at: int) -> Words:
        del at
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self.older:
            self._file.write_bytes(self.older)
        return [*self.words, "--output", self._file]

    def killed(self) -> list[str]:
        if not self._file.exists():
            return ["the older one is lost"] if self.older else []
        is_older = self.older and self._file.read_bytes() == self.older
        return [] if is_older or self._now() == self.whole else ["half an archive"]

    def ended(self) -> list[str]:
        self.whole = self.whole if self.whole[0] else self._now()
        left = sorted(one.name for one in self.folder.iterdir())
        found = [] if left == [self._file.name] else [f"there is {left}"]
        return found if self._now() == self.whole else [*found, "another archive"]

    @property
    def _file(self) -> Path:
        return self.folder / "site.tar"

    def _now(self) -> tuple[str, int]:
        return sha256_of_file(self._file), self._file.stat().st_mode


@dataclass(kw_only=True, slots=True)
class IntoFolder:
    """Images of an archive into folders."""

    form: str
    words: Words
    place: Path
    whole: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"load --output --format {self.form}"

    @property
    def out(self) -> Path:
        return self.place / "images"

    def fresh(self, at: int) -> Words:
        del at
        for place in (self.out, self.place / "home"):
            shutil.rmtree(place, ignore_errors=True)
        return [*self.words, "--output", self.out, "--format", self.form, "--arch", "x86_64"]

    def killed(self) -> list[str]:
        there = {name: files for name, files in self._now().items() if not name.startswith(".")}
        return [f"half of {name}" for name in there if there[name] != self.whole.get(name)]

    def ended(self) -> list[str]:
        self.whole = self.whole or self._now()
        found = [f"it lacks {name}" for name in self.whole.keys() - self._now().keys()]
        return found + [f"there is {name}" for name in self._now().keys() - self.whole.keys()]

    def _now(self) -> dict[str, dict[str, str]]:
        """The files of each image; of the receipt, which notes the time, the image's digest."""
        found = {}
        for one in self.out.iterdir() if self.out.is_dir() else ():
            found[one.name] = files_in(one)
            if receipt := read_receipt(one):
                found[one.name]["receipt.json"] = receipt.image.digest
        return found


@dataclass(kw_only=True, slots=True)
class IntoHome:
    """Inputs of an archive into a home that is empty, or has those of an `older` archive."""

    name: str
    words: Words
    run: Commands
    older: Words = ()
    before: dict[str, object] = field(default_factory=dict)
    whole: dict[str, object] = field(default_factory=dict)

    def fresh(self, at: int) -> Words:
        del at
        for place in (self.run.home, self._project):
            shutil.rmtree(place, ignore_errors=True)
        if self.older:
            done = self.run.run(*self.older)
            assert done.status == 0, done.said
        self.before = self._now()
        return [*self.words, "--checkout", self._project]

    def killed(self) -> list[str]:
        now = self._now()
        lost = [f"{name} is lost" for name in self.before.keys() - now.keys()]
        known = {name: (self.before.get(name), self.whole.get(name)) for name in now}
        return lost + [f"half of {name}" for name in now if now[name] not in known[name]]

    def ended(self) -> list[str]:
        now = self._now()
        self.whole = self.whole or now
        beside = sorted(self._project.parent.glob(f".{self._project.name}.*"))
        found = [f"there is {one.name}" for one in beside]
        names = sorted(now.keys() | self.whole.keys())
        return found + [
            f"{one}: {now.get(one)}" for one in names if now.get(one) != self.whole[one]
        ]

    @property
    def _project(self) -> Path:
        return self.run.home.parent / "checkout"

    def _now(self) -> dict[str, object]:
        """What builds see: the bases, each source, package and journal, and the project."""
        home = Home(path=self.run.home)
        journals = Journals(cache=home.packages)
        found: dict[str, object] = {}
        for folder in (*home.bases.glob("[!.]*"), self._project):
            if folder.is_dir():
                found[folder.name] = files_in(folder)
        for kept in (home.sources, home.packages):
            named = files_in(kept).items() if kept.is_dir() else ()
            found |= {
                name: one
                for name, one in named
                if "/." not in f"/{name}" and "journals" not in name
            }
        if journals.index:
            found["index"] = journals.index
        for file in (home.packages / "journals").glob("*.jsonl"):
            if journals.is_complete(file.stem):
                found[file.name] = journals.of(file.stem)
        return found


def files_in(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder, by path."""
    files = [one for one in folder.rglob("*") if one.is_file() and not one.is_symlink()]
    return {one.relative_to(folder).as_posix(): sha256_of_file(one) for one in files}


def pack(layout: Path, sif: Path) -> None:
    """Something that begins as a SIF does."""
    sif.write_bytes(bytes(32) + b"SIF_MAGIC\0" + read_layout(layout).digest.encode())


def own_key(file: Path) -> PrivateKey:
    """A new key, in a file, too: Ed25519, which signs the same bytes again whatever the library."""
    key = ed25519.Ed25519PrivateKey.generate()
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    file.chmod(0o600)
    return PrivateKey(key=key, name=file.name)


def inputs_archive(folder: Path, name: str, key: PrivateKey) -> Path:
    """A signed archive of inputs alone; `name` is in all that is not kept by its digest."""
    made = folder / name
    for file in ("packages/ab/x.deb", f"packages/ab/{name}.deb", "base.oci.tar", "source"):
        (made / file).parent.mkdir(parents=True, exist_ok=True)
        (made / file).write_bytes(f"{name} {file}".encode() * 9000)
    (made / "matrix.yaml").write_text(name)
    names = ("ab/x.deb", f"ab/{name}.deb")
    given = [
        ServedFile(url=f"http://mirror/{number}", file=one) for number, one in enumerate(names)
    ]
    record = {"name": "base", "arch": "x86_64", "key": "0", "digest": "sha256:0123", "made": "x"}
    inputs, journals = Inputs(contents=ArchiveContents()), Journals(cache=made / "packages")
    journals.note_index(f"http://{name}")
    project = dict.fromkeys(("matrix.yaml", "recipes/x.yaml"), input_file(made / "matrix.yaml"))
    inputs.add(PROJECT, "", {"files": sorted(project)}, project)
    inputs.add(BASE, "", record, {"base.oci.tar": input_file(made / "base.oci.tar")})
    source = input_file(made / "source")
    sha256 = source[0].digest.partition(":")[2]
    inputs.add(SOURCES, "", {"sources": [sha256]}, {sha256: source})
    add_build(inputs, WHO, given, journals)
    index = inputs.add_index()
    described = Descriptor(media_type=index.media_type, digest=index.digest, size=index.size)
    time = "2026-11-01T00:00:00Z"
    proof = proofs(described, (), key, reference="inputs", created=time)
    inputs.contents.add_attached(INPUTS, proof)
    write_archive(folder / f"{name}.tar", inputs.contents)
    return folder / f"{name}.tar"


@contextlib.contextmanager
def all_cases(folder: Path) -> Iterator[tuple[Commands, list[Case]]]:
    """All of them, with a registry and a project below a folder."""
    place = folder / "site"
    place.mkdir()
    key = own_key(folder / "site.key")
    with real_registry(folder / "registry") as registry, commands(place) as run:
        site = Site(registry=registry.host, place=place, known={}, key=key)
        yield run, [*pulls(site), *carried(run, site, folder)]


def pulls(site: Site) -> list[Case]:
    """`pull` in each format."""
    image = site.publish()
    return [Pull(form=form, site=site, image=image) for form in FORMATS]


def carried(run: Commands, site: Site, folder: Path) -> list[Case]:
    """`publish`, `bundle` and `load`, of small releases with a SIF; none has a tarball.

    What is signed is one release: of one architecture in archives, of two in `publish --from`. The
    key is `site.key` in the folder.
    """
    project = make_project(folder / "project", recipes=RECIPES)
    make_images(project, size=2000, layers=1, formats=("oci", "sif"), pack=pack)
    correct_evidence(project)
    any_age = {"required": [], "emulated": "accepted", "max_age": "99999d"}
    policy = site.policy("any.yaml", evidence=any_age, host_contract="ignored")
    judged: Words = ["--policy", policy, "--host", site.record(), "-q"]
    signed: Words = ["-q", "--project", project, "--recipe", RECIPES[0], "--key"]
    signed = [*signed, folder / "site.key"]
    both, one, archive = f"{site.registry}/both", f"{site.registry}/one", folder / "images.tar"
    bundle: Words = ["bundle", *signed, "--no-inputs", "--arch", "x86_64"]
    for words in (
        ["publish", *signed, "--to", both],
        ["publish", *signed, "--to", one, "--arch", "x86_64"],
        [*bundle, "--output", archive],
    ):
        done = run.run(*words)
        assert done.status == 0, done.said
    older, newer = (inputs_archive(folder, name, site.key) for name in ("older", "newer"))
    every: Words = ["publish", "-q", "--project", project]
    mirror: Words = ["publish", *signed[:-2], "--from", both]
    copy: Words = ["bundle", *signed[:-2], "--arch", "x86_64", "--from", one]
    load: Words = ["load", archive, *judged]
    home: Words = ["load", newer, *judged, "--home"]
    before: Words = ["load", older, *judged, "--home"]
    host, target, first = site.registry, site.place / "archives", RECIPES[:1]
    forms = ("oci", "sif", "directory")
    return [
        IntoRegistry(name="publish", words=every, host=host, recipes=RECIPES),
        IntoRegistry(name="publish --from", words=mirror, host=host, recipes=first),
        Archive(name="bundle", words=bundle, folder=target),
        Archive(name="bundle, an older one there", words=bundle, folder=target, older=OLDER),
        Archive(name="bundle --from", words=copy, folder=target),
        IntoRegistry(name="load --to", words=load, host=host, recipes=first),
        *(IntoFolder(form=form, words=load, place=site.place) for form in forms),
        IntoHome(name="load --home", words=home, run=run),
        IntoHome(name="load --home, an older one there", words=home, run=run, older=before),
    ]
