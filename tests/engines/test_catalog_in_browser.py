"""The catalogue in Chromium: wide and narrow, without scripts, with texts that attack it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, served
from catalog_samples import EVIL, image_folder
from command_line import build_images_here
from harness import passed

POWER = "hpc-base-1.0-debian13-openmpi5.0-ppc64le"
TORCH = "pytorch-1.0-debian13-cuda12.4-openmpi5.0-ppc64le"
WIDTHS = (1300, 390)
Site = tuple[Path, str]
# A page around a page, which says how wide that is, and what went wrong in it.
FRAME = """<!DOCTYPE html><body style="margin:0"><iframe src="{page}" width="{width}" height="800"
style="border:0"></iframe><script>
var frame = document.querySelector("iframe");
frame.addEventListener("load", function () {{
  var inner = frame.contentDocument.documentElement, view = frame.contentWindow;
  view.document.querySelectorAll("details").forEach(function (one) {{ one.open = true; }});
  setTimeout(function () {{
    document.title = ["width", inner.scrollWidth, inner.clientWidth, "attacked", String(view.pwned),
      "shown", view.document.querySelectorAll(".entry:not([hidden])").length].join(" ");
  }}, 500);
}});
</script></body>"""

NO_SCRIPTS = """<!DOCTYPE html><body><iframe sandbox="allow-same-origin" src="{page}" width="1300"
height="800"></iframe><pre></pre><script>
var frame = document.querySelector("iframe");
frame.addEventListener("load", function () {{
  document.querySelector("pre").textContent = frame.contentDocument.body.innerText;
}});
</script></body>"""


@pytest.fixture(scope="module", name="browser")
def _browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


@pytest.fixture(scope="module", name="site")
def written(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Site]:
    """The folder and the address of a catalogue of four images, one with texts that attack it."""
    del browser  # skips first
    folder = tmp_path_factory.mktemp("catalog")
    out = folder / "out"
    image_folder(out)
    image_folder(out, arch="ppc64le", packages=("bash", "libucx0"))
    cuda = ("hpc-base", "cuda-base")
    image_folder(out, recipe="pytorch", arch="ppc64le", cuda="12.4", parents=cuda)
    image_folder(out, recipe="evil", about=EVIL, text=EVIL, packages=(EVIL, "x" * 300))
    words = ("--registry=quay.io/site", "--images-in", out, "--output", folder / "site")
    passed(build_images_here("catalog", *words))
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
    assert '<form class="filter facets" role="search">' in html


@pytest.mark.parametrize(
    ("chosen", "images"),
    [
        ("architecture=ppc64le", [POWER, TORCH]),
        ("cuda=12.4", [TORCH]),
        ("framework=cuda-base", [TORCH]),
        ("architecture=ppc64le&cuda=none", [POWER]),
        ("text=libucx0", [POWER]),
        ("text=PyTorch+ppc64le", [TORCH]),
        ("text=nothing+of+this", []),
        ("cuda=12.4&nonsense=%3Cb%3E", [TORCH]),
    ],
)
def test_search_and_filters(browser: Browser, site: Site, chosen: str, images: list[str]) -> None:
    html = browser.dom(f"{site[1]}/index.html#{chosen}")
    assert shown(html) == images
    assert f"{len(images)} of 4" in html


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


def read_without_scripts(browser: Browser, site: Site, page: str) -> str:
    """What a reader sees of a page in which no script may run."""
    folder, address = site
    (folder / "frame-no-scripts.html").write_text(NO_SCRIPTS.format(page=page))
    html = browser.dom(f"{address}/frame-no-scripts.html")
    text = re.search(r"<pre>(.*)</pre>", html, re.DOTALL)
    assert text, html
    return text[1]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["index.html", f"images/{POWER}.html", "images/EVIL.html"])
def test_no_page_is_wider_than_its_window(
    browser: Browser, site: Site, page: str, width: int
) -> None:
    """Nor did a text of an image run in it."""
    page = page.replace("EVIL", "evil-1.0-debian13-openmpi5.0-x86_64")
    folder, address = site
    frame = folder / f"frame-{width}.html"
    frame.write_text(FRAME.format(page=page, width=width))
    html = browser.dom(f"{address}/{frame.name}")
    title = re.search(r"<title>width (\d+) (\d+) attacked (\w+) shown (\d+)</title>", html)
    assert title, html
    assert int(title[1]) <= int(title[2]), "it scrolls sideways"
    assert title[3] == "undefined"
    assert int(title[4]) == (4 if page == "index.html" else 0)


@pytest.mark.parametrize("width", WIDTHS)
def test_it_can_be_looked_at(browser: Browser, site: Site, width: int, tmp_path: Path) -> None:
    data = browser.screenshot(f"{site[1]}/index.html", tmp_path / "x.png", width=width, height=800)
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (width, 800)
    assert len(data) > 10_000, "an empty page"


def test_it_works_from_the_disk(browser: Browser, tmp_path: Path) -> None:
    """Where `'self'` is a file."""
    image_folder(tmp_path / "out")
    image_folder(tmp_path / "out", arch="ppc64le")
    words = ("--images-in", tmp_path / "out", "--output", tmp_path / "site")
    passed(build_images_here("catalog", *words))
    html = browser.dom(f"{(tmp_path / 'site/index.html').as_uri()}#architecture=ppc64le")
    assert shown(html) == [POWER]
