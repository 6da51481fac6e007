"""Pages as tests read them: their texts by class, tags, attributes and links."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "hr", "img"}


class Page(HTMLParser):
    """Texts by class, and tags with their attributes; fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[tuple[str, set[str]]] = []
        self.texts: list[tuple[set[str], str]] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        assert len(named) == len(attrs), f"an attribute twice in <{tag}>"
        self.elements.append((tag, named))
        if tag not in VOID:
            self.stack.append((tag, set(named.get("class", "").split())))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        opened = self.stack.pop()[0]
        assert opened == tag, f"</{tag}> closes <{opened}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.texts.append(({name for _, classes in self.stack for name in classes}, data))

    def text(self, *classes: str) -> str:
        document = "".join(text for around, text in self.texts if set(classes) <= around)
        return " ".join(document.split())

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    def values(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]

    def all(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        return [
            shown
            for name, shown in self.elements
            if name == tag and attributes.items() <= shown.items()
        ]
