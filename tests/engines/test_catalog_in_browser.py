"""Catalogue and report in Chromium: three widths, no scripts, the keyboard alone, axe-core."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, axe_core, served
from catalog_samples import EVIL, add_contract, image_folder
from command_line import build_images_here
from harness import PROJECT, passed
from manifest_samples import write_report

from builder.artifacts.manifests import read_manifest
from builder.reports.report import BuildRun, ReportDocument

HPC = "hpc-base-1.0-debian13-openmpi5.0-x86_64"
POWER = "hpc-base-1.0-debian13-openmpi5.0-ppc64le"
TORCH = "pytorch-1.0-debian13-cuda12.4-openmpi5.0-ppc64le"
HOSTILE = "evil-1.0-debian13-openmpi5.0-x86_64"
WIDTHS = (360, 1280, 2560)
PAGES = ("index.html", f"images/{POWER}.html", f"compare.html#a={HPC}&b={POWER}", "report.html")
Site = tuple[Path, str]
OPENMPI = {"family": "openmpi", "version": "5.0.7", "route": "package", "pmix": "4.2"}
FOCUSABLE = "a[href],button,input,select,summary,[tabindex='0']"
# The focused element's place among all that can be focused, and whether that is to be seen.
FOCUSED = f"""(() => {{
  const one = document.activeElement, box = one.getBoundingClientRect();
  const style = getComputedStyle(one), middle = box.y + Math.min(box.height, 600) / 2;
  const top = document.elementFromPoint(box.x + box.width / 2, middle);
  return [[...document.querySelectorAll("{FOCUSABLE}")].indexOf(one), one.outerHTML.slice(0, 90),
    style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1,
    one.contains(top) || (top !== null && top.contains(one) && !top.closest(".picked"))];
}})()"""
REACHABLE = f"""[...document.querySelectorAll("{FOCUSABLE}")].map((one, at) => [one, at])
  .filter(([one]) => !one.disabled && one.checkVisibility({{visibilityProperty: true}})
    && !(one.closest("details:not([open])") && !one.matches("summary"))).map(([one, at]) => at)"""
DIFFERENCES = """[...document.querySelectorAll("section.kind")].flatMap((section) => {
  const table = section.querySelector(":scope > table"), kind = section.className.split(" ")[1];
  return table ? [...table.tBodies[0].rows].map((row) => [kind, row.cells[0].textContent,
    ...[row.cells[1], row.cells[2]].map((cell) => cell.classList.contains("absent") ? ""
      : cell.title.split(" ")[0] || cell.textContent)]) : [];
})"""


@pytest.fixture(scope="module", name="browser")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture(scope="module", name="site")
def written(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Site]:
    """The folder and the address of a catalogue of four images, one with texts that attack it.

    The report on them is beside it.
    """
    del browser  # skips first
    folder = tmp_path_factory.mktemp("catalog")
    out = folder / "out"
    add_contract(image_folder(out, labels={"title": HPC, "licence": "x"}), mpi=OPENMPI)
    power = image_folder(
        out,
        arch="ppc64le",
        packages=("bash", "libucx0"),
        version="1.2",
        labels={"title": POWER, "licence": "x"},
    )
    add_contract(power, mpi=OPENMPI)
    cuda = ("hpc-base", "cuda-base")
    torch = image_folder(out, recipe="pytorch", arch="ppc64le", cuda="12.4", parents=cuda)
    add_contract(torch, cuda={"version": "12.4", "driver": "525.60.13", "capabilities": ["70"]})
    image_folder(out, recipe="evil", about=EVIL, text=EVIL, packages=(EVIL, "x" * 300))
    hosts = [f"--host={PROJECT}/tests/data/hosts/{name}.json" for name in ("satori", "dgx")]
    words = ("--registry=quay.io/site", "--images-in", out, "--output", folder / "site")
    passed(build_images_here("catalog", *words, *hosts))
    manifests = [read_manifest(path.parent) for path in sorted(out.glob("*/manifest.json"))]
    images = tuple(manifest for manifest in manifests if manifest)
    broken = {"broken-1.0-debian13-x86_64": "exit status 1\n" + "a long line " * 40}
    report = ReportDocument(build=BuildRun(command="build-images"), images=images, failures=broken)
    write_report(folder / "site", report)
    with served(folder / "site") as address:
        yield folder / "site", address


def shown(html: str) -> list[str]:
    """The images that a reader sees in the list."""
    rows = re.findall(r'<tr class="entry"([^>]*)>.*?<a href[^>]*>([^<]+)</a>', html, re.DOTALL)
    return [image for attributes, image in rows if "hidden" not in attributes.split()[-1]]


def test_all_images_are_listed_with_filters(browser: Browser, site: Site) -> None:
    html = browser.dom(f"{site[1]}/index.html")
    assert len(shown(html)) == 4
    assert "4 of 4" in html
    assert '<form class="filter facets" id="facets" role="search">' in html


@pytest.mark.parametrize(
    ("chosen", "images"),
    [
        ("architecture=ppc64le", [POWER, TORCH]),
        ("cuda=12.4", [TORCH]),
        ("framework=cuda-base", [TORCH]),
        ("architecture=ppc64le&cuda=none", [POWER]),
        ("text=libucx0", [POWER]),
        ("text=libucx0+1.2", [POWER]),
        ("text=PyTorch+ppc64le", [TORCH]),
        ("text=nothing+of+this", []),
        ("cuda=12.4&nonsense=%3Cb%3E", [TORCH]),
        ("site=satori&answer=yes", [POWER]),
        ("site=satori&answer=no&architecture=ppc64le", [TORCH]),
        ("site=nowhere&answer=yes&cuda=12.4", [TORCH]),
    ],
)
def test_search_and_filters(browser: Browser, site: Site, chosen: str, images: list[str]) -> None:
    html = browser.dom(f"{site[1]}/index.html#{chosen}")
    assert shown(html) == images
    assert f"{len(images)} of 4" in html
    assert ("No image has all of this." in str(browser.value("document.body.innerText"))) == (
        not images
    )


def test_a_choice_that_is_none_is_no_choice(browser: Browser, site: Site) -> None:
    assert len(shown(browser.dom(f"{site[1]}/index.html#architecture=no-such"))) == 4


def test_everything_is_read_without_scripts(browser: Browser, site: Site) -> None:
    index = read_without_scripts(browser, site, "index.html")
    assert sum(name in index for name in (POWER, TORCH)) == 2
    assert "Search" not in index, "a filter that does nothing"
    page = read_without_scripts(browser, site, f"images/{POWER}.html")
    for text in ("libucx0", "apptainer pull --arch ppc64le", "apptainer 1.4.5", "PASSED"):
        assert text in page
    assert "Copy" not in page
    assert "satori ✓ runs" in page, "the site's details can be opened"
    assert "build-images diff IMAGE OTHER" in read_without_scripts(browser, site, "compare.html")


def read_without_scripts(browser: Browser, site: Site, page: str) -> str:
    """What a reader sees of a page in which no script may run."""
    browser.scripts = False
    browser.open(f"{site[1]}/{page}")
    browser.scripts = True
    return str(browser.value("document.body.innerText"))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", [*PAGES, f"index.html#site=satori&compare={HPC}", HOSTILE])
def test_no_page_is_wider_than_its_window(
    browser: Browser, site: Site, page: str, width: int
) -> None:
    """Nor did a text of an image run in it."""
    page = f"images/{page}.html" if page == HOSTILE else page
    browser.open(f"{site[1]}/{page}", width=width)
    browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.value("document.documentElement.scrollWidth") == width, "it scrolls sideways"
    assert browser.value("window.pwned") is None
    data = browser.screenshot()
    assert struct.unpack(">II", data[16:24]) == (width, 800)
    assert len(data) > 10_000, "an empty page"


def test_it_works_from_the_disk(browser: Browser, site: Site) -> None:
    """Where `'self'` is a file."""
    html = browser.dom(f"{(site[0] / 'index.html').as_uri()}#architecture=ppc64le&cuda=none")
    assert shown(html) == [POWER]
    browser.open(f"{(site[0] / 'compare.html').as_uri()}#a={HPC}&b={POWER}")
    assert browser.value(DIFFERENCES)


# Two images, and how they run at a site


def test_two_images_differ_as_the_diff_command_says(browser: Browser, site: Site) -> None:
    folder = site[0].parent / "out"
    done = build_images_here("diff", folder / HPC, folder / POWER, "--json")
    changes = json.loads(done.stdout)["changes"]
    told = sorted([one["what"], one["name"], one["before"], one["after"]] for one in changes)
    assert {one[0] for one in told} >= {"package", "label"}
    browser.open(f"{site[1]}/compare.html#a={HPC}&b={POWER}")
    seen = browser.value(DIFFERENCES)
    assert sorted(one for one in seen if one[0] != "axis") == told
    assert ["axis", "architecture", "x86_64", "ppc64le"] in seen
    browser.value("document.querySelector('.pair button').click()")
    assert browser.value("location.hash") == f"#a={POWER}&b={HPC}"
    assert ["package", "libucx0", "1.2", ""] in browser.value(DIFFERENCES)
    browser.value("document.querySelector('.check summary').click()")
    assert "passed" in browser.value("document.querySelector('.check').innerText")


def test_what_is_not_known_is_not_compared(browser: Browser, site: Site) -> None:
    browser.open(f"{site[1]}/compare.html#a={TORCH}&b={HOSTILE}")
    text = str(browser.value("document.querySelector('.label').innerText"))
    assert "they are not known for both images" in text


LAUNCH = "mpirun --allow-run-as-root --oversubscribe"
SITE_COMMANDS = [
    "build-images pull quay.io/site/hpc-base:1.0-debian13-openmpi5.0 --arch ppc64le --format sif",
    f"singularity exec {POWER}-sif/image.sif {LAUNCH} -n 4 ./program",
    f"PMIX_MCA_gds=hash srun --mpi=pmix_v3 -n 4 singularity exec {POWER}-sif/image.sif ./program",
]


def test_the_commands_at_a_site(browser: Browser, site: Site) -> None:
    """In the list where the site is chosen, and on the image's page."""
    images = shown(browser.dom(f"{site[1]}/index.html#site=satori"))
    rows = browser.value("[...document.querySelectorAll('.at-site')].map((one) => one.innerText)")
    answers = dict(zip(images, rows, strict=True))
    assert [line for line in SITE_COMMANDS if line not in answers[POWER]] == []
    assert "driver: 418.87.00 is older than 525.60.13" in answers[TORCH]
    assert "no host contract" in answers[HOSTILE]
    browser.value(f"document.querySelector('a[href*=\"{POWER}\"]').click()")
    text = browser.wait_for("document.querySelector('details[open].site')?.innerText")
    assert [line for line in SITE_COMMANDS if line not in text] == []


def test_the_reports_filter_can_be_sent(browser: Browser, site: Site) -> None:
    """And a link to an image leads to it."""
    left = (
        "[...document.querySelectorAll('.card')].filter((one) => !one.hidden).map((one) => one.id)"
    )
    browser.open(f"{site[1]}/report.html#text=ppc64le+torch&state=verified")
    assert browser.value(left) == [TORCH]
    browser.value("document.querySelector('[data-state=\"\"]').click()")
    assert browser.value("location.hash") == "#text=ppc64le+torch&state="
    browser.value(f"document.querySelector('a[href=\"#{HPC}\"]').click()")
    assert browser.wait_for(f"{left}.length") == 5
    assert browser.value("location.hash") == f"#{HPC}"


# By keyboard alone, and for everyone


@pytest.mark.parametrize("page", [*PAGES, f"index.html#site=satori&compare={HPC}"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_keyboard_reaches_everything(
    browser: Browser, site: Site, page: str, width: int
) -> None:
    browser.open(f"{site[1]}/{page}", width=width)
    reachable, visited = browser.value(REACHABLE), []
    assert reachable
    for _ in range(len(reachable)):
        browser.press("Tab")
        number, html, outlined, uncovered = browser.value(FOCUSED)
        visited.append(number)
        assert (outlined, uncovered) == (True, True), html
    assert visited == reachable


def test_two_images_are_chosen_and_compared_by_keyboard(browser: Browser, site: Site) -> None:
    browser.open(f"{site[1]}/index.html")

    def go_to(selector: str, key: str = "Tab") -> None:
        for _ in range(60):
            browser.press(key)
            if browser.value(f"document.activeElement.matches({json.dumps(selector)})"):
                return
        raise AssertionError(f"never at {selector}")

    go_to("[name=text]")
    browser.press(*"hpc")
    assert browser.value("document.querySelector('output').textContent") == "2 of 4"
    go_to("[name=site]")
    browser.press("ArrowDown", "ArrowDown")
    assert browser.value("location.hash") == "#text=hpc&site=satori"
    go_to("input[type=checkbox]")
    browser.press("Space")
    go_to("input[type=checkbox]")
    browser.press("Space")
    go_to(".picked a")
    browser.press("Enter")
    assert browser.wait_for("document.querySelector('.kind') && location.hash") == (
        f"#a={POWER}&b={HPC}"
    )


@pytest.mark.parametrize(
    ("width", "dark"), [(360, False), (1280, False), (1280, True), (2560, False)]
)
@pytest.mark.parametrize("page", [*PAGES, f"index.html#site=satori&compare={HPC}"])
def test_axe_finds_nothing_serious(
    browser: Browser, site: Site, page: str, width: int, dark: bool
) -> None:
    script = axe_core()
    browser.dark = dark
    browser.open(f"{site[1]}/{page}", width=width)
    browser.dark = False
    browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.value(script + ";0")
    found: list[dict[str, Any]] = browser.value(
        "axe.run(document, {resultTypes: ['violations']}).then((done) => done.violations.map("
        "({id, impact, nodes}) => ({id, impact, html: nodes.map((one) => one.html)})))"
    )
    serious = [one for one in found if one["impact"] in {"serious", "critical"}]
    assert serious == []
