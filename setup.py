"""What pyproject.toml cannot say: the suites that lie beside the code are not for those who install the package."""

from fnmatch import fnmatch

from setuptools import setup
from setuptools.command.build_py import build_py

SUITES = ("test_*.py", "conftest.py")


class BuildWithoutSuites(build_py):
    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """The modules of a package that are packed: (package, module, file)."""
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if not any(fnmatch(f"{module[1]}.py", suite) for suite in SUITES)]


setup(cmdclass={"build_py": BuildWithoutSuites})
