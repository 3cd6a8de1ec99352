"""The links and the headings of a Markdown page."""

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_LINK_TEXT = re.compile(r"\[([^]]*)\]\([^)]*\)")


class PageLink(NamedTuple):
    """target: a path, relative to the page; empty for the page itself. anchor: empty if there is none."""

    target: str
    anchor: str


def links_of(text: str) -> list[PageLink]:
    """The links and pictures of a page, but those to other sites."""
    found = _LINK.findall(_FENCED.sub("", text))
    return [
        PageLink(*link.partition("#")[::2]) for link in found if "://" not in link and not link.startswith("mailto:")
    ]


def anchors_of(text: str) -> set[str]:
    """The anchors of a page's headings that lead there on the site and in the repository's browser alike."""
    headings = [_LINK_TEXT.sub(r"\1", heading) for heading in _HEADING.findall(_FENCED.sub("", text))]
    return set(_numbered(map(_site_slug, headings), "_")) & set(_numbered(map(_repository_slug, headings), "-"))


def _site_slug(heading: str) -> str:
    """As the extension ``toc`` of Python-Markdown has it."""
    ascii_only = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def _repository_slug(heading: str) -> str:
    """As GitHub has it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _numbered(slugs: Iterator[str], sign: str) -> Iterator[str]:
    """Slugs that occur again have a number behind them."""
    seen: dict[str, int] = {}
    for slug in slugs:
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        yield f"{slug}{sign}{count}" if count else slug


def broken_links(page: Path, site: Path) -> list[PageLink]:
    """Links of a page to files or headings that are not there. site: the folder of pages that may link to no other."""
    broken = []
    for link in links_of(page.read_text()):
        path = (page.parent / link.target).resolve() if link.target else page
        is_there = path.is_file() and path.is_relative_to(site) if page.is_relative_to(site) else path.exists()
        if not is_there or (link.anchor and link.anchor not in anchors_of(path.read_text())):
            broken.append(link)
    return broken
