"""The part of the build that pyproject.toml cannot express: which files of the repository are packed, and where."""

import shutil
from fnmatch import fnmatch
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
#: The tests next to the code are not packed.
SUITES = ("test_*.py", "conftest.py")
#: What `course init` installs. Here it is next to the packages, in a wheel inside `course`. docs/site is left out: it
#: is the frame of the site, which is built in a checkout.
COURSE = ("README.md", "docs", "notebooks", *sorted(path.name for path in ROOT.glob("phase-*")))
NOT_PACKED = shutil.ignore_patterns("__pycache__", "site", "*.pyc", ".*", "*.new.py", "*.partial")


class BuildPackages(build_py):
    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return the modules of a package that are packed: (package, module, file)."""
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if not any(fnmatch(f"{module[1]}.py", suite) for suite in SUITES)]

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self._pack_course(Path(self.build_lib) / "course" / "_course")

    def _pack_course(self, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in COURSE:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target / name, ignore=NOT_PACKED)
            else:
                shutil.copy(ROOT / name, target / name)


setup(cmdclass={"build_py": BuildPackages})
