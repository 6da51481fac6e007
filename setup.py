"""The build step of the wheel: the shipped files come with the program.

A clone has them at its root. In the wheel they are in a folder beside the package, and
`builder/load/site.py` finds either. Everything else is in pyproject.toml.
"""

from itertools import chain
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDER = "build_images"
SHIPPED = (  # all that builder/load reads of a layer
    *("matrix.yaml", "lock.yaml", "tests/images/*", "files/**/*", "facts/*"),
    *(
        f"{folder}/*.{ending}"
        for folder in ("recipes", "base-images")
        for ending in ("yaml", "yml")
    ),
)


class WithShippedFiles(build_py):
    """Copies the shipped files; an editable installation reads them where they are."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for path in sorted(chain(*(Path().glob(pattern) for pattern in SHIPPED))):
            if path.is_file():
                target = Path(self.build_lib, FOLDER, path)
                self.mkpath(str(target.parent))
                self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": WithShippedFiles})
