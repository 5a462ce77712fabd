"""Find the labs, and their names and settings."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from course.lab.score import ScoreSettings

#: The project, found from this file. In a checkout the labs are folders next to the package, which is installed in
#: place. An installation from a wheel has no labs.
PROJECT_ROOT = Path(__file__).resolve().parents[2]

#: The file by which ``course init`` marks a course that it created.
MARKER = Path(".course") / "course.json"

_PHASE = re.compile(r"phase-(\d+)-[\w-]+")
_LAB = re.compile(r"lab-(\d+)-[\w-]+")


NO_COURSE = ("There is no course here. `course init my-course` creates one in a new folder; then work inside that "
             "folder.")
APART = ("{folder} is a clone of the course, but the command `course` was installed apart from it, without labs: run "
         "`pip install -e .` in that folder.")


class LabError(Exception):
    """A problem with a lab that the reader of the message can fix."""


@dataclass(frozen=True)
class _Settings:
    """The contents of ``lab.json``."""

    title: str
    engine: tuple[str, ...]
    base: str | None
    parts: dict[str, str]
    adapter: str | None
    needs: dict[str, str]
    now: str
    waits: bool
    time_factor: float
    minutes: int | None
    score: ScoreSettings | None
    bare: tuple[str, ...]
    given: tuple[str, ...]
    surface: dict[str, str]
    reference: str
    router: str


@dataclass(frozen=True)
class Lab:
    """One lab folder. ``number`` is phase.lab, as in 2.1."""

    root: Path
    folder: Path
    number: str

    @property
    def name(self) -> str:
        """The folder's name without its number: ``block-allocator``."""
        return self.folder.name.split("-", 2)[2]

    @property
    def starter(self) -> Path:
        return self.folder / "starter.py"

    @property
    def solution(self) -> Path:
        return self.folder / "solution.py"

    @property
    def tests(self) -> Path:
        return self.folder / "test_lab.py"

    @property
    def see(self) -> Path | None:
        """A program that shows the finished lab at work, or None; ``course run --lab`` runs it."""
        path = self.folder / "see.py"
        return path if path.is_file() else None

    @property
    def hints(self) -> Path:
        return self.folder / "hints.md"

    @property
    def mutants(self) -> Path:
        return self.folder / "mutants.py"

    @property
    def answers(self) -> Path:
        return self.folder / "answers.md"

    @property
    def phase(self) -> str:
        return self.number.split(".")[0]

    @property
    def readme(self) -> Path:
        return self.folder / "README.md"

    @cached_property
    def _settings(self) -> _Settings:
        path = self.folder / "lab.json"
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
            engine = settings["engine"] or []
            if not isinstance(settings["title"], str):
                raise TypeError(f"title is {settings['title']!r}, must be a text")
            return _Settings(settings["title"], (engine,) if isinstance(engine, str) else tuple(engine),
                             settings.get("base"), dict(settings.get("parts", {})), settings.get("adapter"),
                             dict(settings.get("needs", {})), settings.get("now", ""), bool(settings.get("waits")),
                             settings.get("time_factor", 1.0), settings.get("minutes"),
                             ScoreSettings.of(settings["score"]) if "score" in settings else None,
                             tuple(settings.get("bare", ())), tuple(settings.get("given", ())),
                             dict(settings.get("surface", {})), settings.get("reference", ""),
                             settings.get("router", ""))
        except FileNotFoundError:
            raise LabError(f"{self.relative(path)} is missing") from None
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f'{self.relative(path)} must be JSON with "title" and "engine": {error!r}') from None

    @property
    def title(self) -> str:
        return self._settings.title

    @property
    def engine(self) -> tuple[str, ...]:
        """The engine modules with the same interface, tested as one module; empty if the lab has no counterpart.

        If two of them define a name, the later one wins.
        """
        return self._settings.engine

    @property
    def base(self) -> str | None:
        """The number of the lab that this one extends; see ``course.base``."""
        return self._settings.base

    @property
    def parts(self) -> dict[str, str]:
        """The lab's contribution to the engine: slot of ``EngineParts`` → the name in its file that fills the slot."""
        return self._settings.parts

    @property
    def adapter(self) -> str | None:
        """The class between the lab's piece and the engine, as ``module.Class``."""
        return self._settings.adapter

    @property
    def needs(self) -> dict[str, str]:
        """Slot → the first lab whose piece in that slot can use this lab's piece."""
        return self._settings.needs

    @property
    def waits(self) -> bool:
        """Whether the lab's piece lets requests wait forever where another piece would take blocks from them."""
        return self._settings.waits

    @property
    def time_factor(self) -> float:
        """The factor by which the lab's tests may exceed the usual CPU limit. With MLX, all its threads count."""
        return self._settings.time_factor

    def test_limit_s(self, time_limit_s: float) -> float:
        """Return the CPU limit of one of the lab's tests, given the value of ``--time-limit``."""
        return self.time_factor * time_limit_s

    @property
    def minutes(self) -> int | None:
        """The minutes that the lab takes a fluent Python programmer."""
        return self._settings.minutes

    @property
    def score(self) -> ScoreSettings | None:
        """How an open lab is scored; None for all other labs."""
        return self._settings.score

    @property
    def bare(self) -> tuple[str, ...]:
        """The docstring sentences that a bare starter keeps in addition to the usual ones, as ``place: quote``."""
        return self._settings.bare

    @property
    def given(self) -> tuple[str, ...]:
        """Modules of the course that the grader's sandbox contains because the lab's file extends their classes."""
        return self._settings.given

    @property
    def surface(self) -> dict[str, str]:
        """The names that the lab's file may use on the grader's side; see ``course.grading.remote_lab.surface``."""
        return self._settings.surface

    @property
    def reference(self) -> str:
        """The module of the course whose CPU time the lab's file is compared with; "" if there is none."""
        return self._settings.reference

    @property
    def router(self) -> str:
        """The name of the class that routes requests in ``course serve --replicas``; "" if the lab has none."""
        return self._settings.router

    @property
    def now(self) -> str:
        """What a student has built after passing this lab, in a sentence or two."""
        return self._settings.now

    def module_path(self, module: str) -> Path:
        """Return the file of a module of the project."""
        path = self.root / (module.replace(".", "/") + ".py")
        if path.is_file():
            return path
        try:
            found = importlib.util.find_spec(module)  # a course that was created from an installed package
        except ModuleNotFoundError:
            return path
        return Path(found.origin) if found is not None and found.origin else path

    def relative(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


def find_root(start: Path | None = None) -> Path:
    """Return the root of the course that contains ``start``, by default the current folder.

    This is a course created by ``course init``, else the checkout that this package is installed from. Raise LabError
    if there is neither.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / MARKER).is_file():
            return folder
    if _has_labs(PROJECT_ROOT):
        return PROJECT_ROOT
    for folder in (start, *start.parents):
        if _has_labs(folder):
            raise LabError(APART.format(folder=folder))
    raise LabError(NO_COURSE)


def _has_labs(folder: Path) -> bool:
    return any(folder.glob("phase-*/labs"))


def discover(root: Path | None = None) -> list[Lab]:
    """Return all labs of a project, by default the project of the current folder, in the order of the course."""
    root = root or find_root()
    labs = []
    for phase in root.iterdir():
        phase_match = _PHASE.fullmatch(phase.name)
        if not phase_match or not (phase / "labs").is_dir():
            continue
        for folder in (phase / "labs").iterdir():
            lab_match = _LAB.fullmatch(folder.name)
            if lab_match and (folder / "test_lab.py").is_file():
                labs.append(Lab(root, folder, f"{int(phase_match[1])}.{int(lab_match[1])}"))
    return sorted(labs, key=lambda lab: [int(part) for part in lab.number.split(".")])


def lab_of_path(path: Path, labs: list[Lab]) -> Lab | None:
    """Return the lab whose folder contains ``path``, or None."""
    path = path.resolve()
    return next((lab for lab in labs if path == lab.folder or lab.folder in path.parents), None)


def find_lab(name: str, labs: list[Lab]) -> Lab:
    """Find a lab by number (``2.1``), name, folder name or path. Raise LabError with the list and the nearest match."""
    wanted = name.strip().rstrip("/")
    if re.fullmatch(r"\d+\.\d+", wanted):
        wanted = ".".join(str(int(part)) for part in wanted.split("."))
    for lab in labs:
        names = (lab.number, lab.name, lab.folder.name, lab.relative(lab.folder), str(lab))
        if wanted.lower() in [candidate.lower() for candidate in names]:
            return lab
    if wanted and Path(wanted).exists():
        here = lab_of_path(Path(wanted), labs)
        if here:
            return here
    if number := re.fullmatch(r"(\d+)(\.\d*)?", wanted):  # similar digits do not mean a similar lab
        of_phase = [lab for lab in labs if lab.number.split(".")[0] == str(int(number[1]))]
        if of_phase:
            raise LabError(f"There is no lab {name!r}. Phase {int(number[1])} has:\n{_listing(of_phase)}")
        raise LabError(f"There is no lab {name!r}.\nThe labs are:\n{_listing(labs)}")
    known = {candidate: lab for lab in labs for candidate in (lab.name, lab.folder.name)}
    from mini_vllm.checks import nearest  # imported late: a process that runs tests starts without the engine
    near = nearest(wanted.split("/")[-1], known)
    guess = f" Did you mean {known[near]}?" if near else ""
    raise LabError(f"There is no lab {name!r}.{guess}\nThe labs are:\n{_listing(labs)}")


def _listing(labs: list[Lab]) -> str:
    return "\n".join(f"  {lab.number}  {lab.name}" for lab in labs)
