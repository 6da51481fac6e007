"""Judge each image of an archive, in each of its formats, by the policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from builder.distribute.bundle import Bundle, releases_of
from builder.distribute.bundle.layout import BundledRepository
from builder.distribute.publish.mirror import File, Mirrored, found_release
from builder.distribute.pull.proof import proofs_of
from builder.distribute.pull.remote_image import published
from builder.distribute.pull.request import Judged, PullRequest, look
from builder.model.architectures import architecture
from builder.model.errors import BadInput
from builder.registry import Descriptor, Reference, Registry, Source
from builder.registry.manifests import ARTIFACT_TYPES, descriptors
from builder.trust.policy.judgement import WITHOUT_DIGESTS
from builder.trust.policy.records import Gathered, Image, Ruling
from builder.trust.policy.rules import dates, signature

NOWHERE = "bundle"  # in place of a registry, for images of an archive


def with_fix(ruling: Ruling) -> Ruling:
    """Return a ruling with a fix that works here: `load` does not name images by digest."""
    return replace(ruling, fix=WITHOUT_DIGESTS) if ruling.rule == "rollback" else ruling


def images_of(archive: Bundle, site: PullRequest) -> list[Judged]:
    """Judge the images for the site's architecture, in its format; raises `BadInput` for none."""
    images = []
    for (recipe, digest), tags in releases_of(archive).items():
        source = archive.repository(recipe)
        if site.arch in _architectures(source, digest):
            at = Reference(registry=NOWHERE, repository=recipe, tag=tags[0])
            images.append(look(replace(site, reference=at), source))
    if not images:
        problem = f"{archive.archive.path}: no image for {site.arch}"
        raise BadInput(problem, hint="name another architecture with --arch")
    return images


def rulings_on_inputs(
    repository: BundledRepository, index: Descriptor, site: PullRequest
) -> tuple[Ruling, Ruling]:
    """Return the rulings of a site's policy on the signature and dates of an archive's inputs."""
    gathered = Gathered(
        reference=repository.name,
        format="oci",
        now=site.now,
        image=Image(digest=index.digest, architecture=site.arch, asked=site.arch),
        proofs=proofs_of(repository, [index.digest], site.trusted, site.now),
    )
    return signature(site.policy, gathered), dates(site.policy, gathered)


def proven_files(images: Sequence[Judged]) -> set[File]:
    """Return the SIFs and tarballs that the policy does not refuse."""
    return {
        (image.remote.image.digest, image.request.format, image.artifact.digest)
        for image in images
        if image.artifact and not image.judgement.refused
    }


def all_releases(
    archive: Bundle, site: PullRequest, to: Callable[[str], Registry]
) -> tuple[list[Judged], list[Mirrored], list[str]]:
    """Judge every image of an archive as if it were in the target registry.

    Return the images, the releases, and the reasons why some releases cannot be loaded.
    """
    images: list[Judged] = []
    releases: list[Mirrored] = []
    reasons: list[str] = []
    for (recipe, digest), tags in releases_of(archive).items():
        source, target = archive.repository(recipe), to(recipe)
        at = Reference(registry=target.transport.registry, repository=target.repository)
        for number, tag in enumerate(tags):
            for arch in _architectures(source, digest):
                request = replace(site, reference=at.at(tag), arch=arch)
                images += _each_format(request, source, is_first=number == 0)
        release, why = found_release(source, recipe, tags, ())
        releases += [release] if release else []
        reasons += why
    return images, releases, reasons


def _architectures(source: Source, index: str) -> list[str]:
    """Return the architectures of an index, as this project spells them; refuse unknown ones."""
    names = []
    for image in descriptors(source.document(index)[1], "manifests", source.name):
        name = image.platform.get("architecture", "")
        known = architecture(name)
        if known is None:
            raise source.wrong(index, "unknown architecture")
        names.append(known.name)
    return names


def _each_format(request: PullRequest, source: Source, *, is_first: bool) -> Iterator[Judged]:
    first = look(replace(request, format="oci"), source)
    yield first
    for name in ARTIFACT_TYPES if is_first else ():
        if published(source, first.remote.image.digest, name):
            yield look(replace(request, format=name), source)
