"""The sources of text by name. A new one is a subclass of `Source` and a line in `SOURCES`."""

from andrea.data.sources.sotu import Sotu
from andrea.data.sources.source import Source
from andrea.data.sources.text_files import TextFiles

SOURCES: dict[str, type[Source]] = {
    "sotu": Sotu,
    "text": TextFiles,
}


def make_source(reference: str) -> Source:
    """Return the source that a reference such as `sotu` or `text:PATH` names.

    Raises:
        ValueError: there is no such source, or its argument is missing or superfluous.
    """
    name, colon, argument = reference.partition(":")
    source = SOURCES.get(name)
    if source is None or not (":" in source.usage) == bool(colon) == bool(argument):
        usages = ", ".join(each.usage for each in SOURCES.values())
        raise ValueError(f"unknown source {reference!r}; there are {usages}")
    return source(argument)
