"""Reads a rendered page back."""

from __future__ import annotations

import html.parser

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Walk(html.parser.HTMLParser):
    """Checks nesting, and collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), tag
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def walk(page: bytes) -> Walk:
    found = Walk()
    found.feed(page.decode())
    found.close()
    assert not found.open
    return found


def words(page: bytes) -> str:
    return " ".join(" ".join(walk(page).text).replace("\u00a0", " ").split())
