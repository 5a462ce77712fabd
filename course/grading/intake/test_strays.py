"""Names that say nothing, or the wrong thing: each is listed, with what it probably is and a command that works."""

import io
import json
import os
import subprocess
import time
import unicodedata
import zipfile
from pathlib import Path

import pytest

from course.grading.intake.assign_owners import settle
from course.grading.intake.find_submissions import find
from course.grading.intake.lab_names import is_labs_file, reminds_of
from course.grading.intake.likely import MAX_CHARACTERS, Starters, likely_student, names_in
from course.grading.intake.match_labs import take_in
from course.grading.intake.read_files import MAX_ALL_GUESSED_BYTES, Budget, may_be_python
from course.grading.intake.roster import Roster, Student
from course.grading.intake.strays import MAX_FURTHER, MAX_LOOKED_AT, Strays, with_notes
from course.grading.intake.unclear import Kind, quoted
from course.lab.lab import PROJECT_ROOT, discover, find_lab
from course.lab.starters import shipped_starter

LABS = discover()
LAB = find_lab("2.1", LABS)
SOLVED = {lab.number: lab.solution.read_text() + "\n# my own\n" for lab in LABS}
TEXT = SOLVED["2.1"]


@pytest.fixture
def folder(tmp_path):
    """Create a folder of submissions, with one that is in order and that nothing else affects."""
    put(tmp_path / "in/zed/2.1.py")
    return tmp_path / "in"


def put(path, text=TEXT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def listed(folder, asked=("2.1",), roster=None):
    """Return what is unclear about each path, as ``course grade`` finds it."""
    found, left_out = find(folder, None)
    settled = settle(found, roster, labs=LABS)
    asked = [find_lab(number, LABS) for number in asked]
    strays = Strays(LABS, asked, PROJECT_ROOT)
    students = {one.student.id: one.student for one in settled.submissions}
    unclear = settled.unclear + strays.of_nobody(left_out + settled.nobodys, students, list(students))
    for submission in settled.submissions:
        unclear += strays.of(submission, take_in(submission, LABS, asked))
    return {one.path: one for one in unclear}


def graded(folder, asked=("2.1",), roster=None):
    """Return for each student the labs with a text to grade."""
    asked = [find_lab(number, LABS) for number in asked]
    submissions = settle(find(folder, None)[0], roster, labs=LABS).submissions
    return {one.student.id: [number for number, file in take_in(one, LABS, asked).files.items() if file.content]
            for one in submissions}


def run(command):
    subprocess.run(["bash", "-c", command], check=True)


# ---- names that cannot be ids

ODD = {b"#tag": "contains '#'", b"-rf": "does not begin", b"..": None, b"...": "does not begin",
       b"..ann": "does not begin", b".hidden": "does not begin", b"a*b": "contains '*'", b"a:b": "contains ':'",
       b"new\nline": "contains '\\n'",
       b"x" * 200: "has 200 characters", b"bad\xff": "is not UTF-8", "\u202eevil".encode(): "contains '\\u202e'",
       b"dot.": "ends with '.'", b"$(reboot)": "contains '$'", b"`id`": "contains '`'",
       b"a'b\"c;d": "contains '\"', ';'",
       b"\\x41": "contains '\\\\'", "😀".encode() * 3: "contains '\\U0001f600'",
       "語".encode() * 81: "has 81 characters",
       "\U0001d41a".encode() * 63: "has 63 characters; an id has at most 80 characters and 240 bytes"}


def test_odd_names_are_listed_at_once_and_stop_nobody(folder):
    for name in ODD:
        if name != b"..":
            os.makedirs(os.path.join(os.fsencode(folder), name), exist_ok=True)
            with open(os.path.join(os.fsencode(folder), name, b"starter.py"), "w") as file:
                file.write(TEXT)
    for name in ("ann lee", "bob (2)", "o'hara", "d@x.edu", "张伟", "empty"):
        (folder / name).mkdir()
    unclear = listed(folder)
    odd = {name: why for name, why in ODD.items() if why}
    assert set(unclear) == {os.fsdecode(name) for name in odd}
    for name, why in odd.items():
        one = unclear[os.fsdecode(name)]
        assert one.kind is Kind.NAME and one.is_open and why in one.why, (name, one.why)
        assert one.why.isprintable() and one.advice.isprintable()
    assert graded(folder)["zed"] == ["2.1"] and len(graded(folder)) == 7
    json.dumps([one.to_json() for one in unclear.values()]).encode()
    for one in unclear.values():
        run(one.advice)
    assert listed(folder) == {} and len(graded(folder)) == 7 + len(odd)
    assert sorted(os.listdir(folder.parent)) == ["in"]


def test_commands_work_from_where_one_stands(folder, monkeypatch):
    put(folder / "-rf/-final.py")
    monkeypatch.chdir(folder)
    run(listed(Path("."))["-rf"].advice)
    run(listed(Path("."))["rf/-final.py"].advice)
    assert graded(folder)["rf"] == ["2.1"]


def test_what_programs_leave_is_no_odd_name(folder):
    for name in (".git", ".ipynb_checkpoints", "__MACOSX", ".vscode", "._ann", ".mypy_cache"):
        put(folder / name / "starter.py")
    for name in (".gitignore", ".DS_Store", "Thumbs.db"):
        put(folder / name)
    assert listed(folder) == {} and list(graded(folder)) == ["zed"]


def test_spaces_around_a_name_and_other_encodings_are_the_same_student(folder):
    for name in (" ann", "ann", "jos\u00e9", unicodedata.normalize("NFD", "jos\u00e9")):
        put(folder / name / "starter.py")
    unclear = {one.student: one for one in listed(folder).values()}
    assert set(unclear) == {"ann", "jos\u00e9"} and {one.kind for one in unclear.values()} == {Kind.TWICE}
    assert "'jose\\u0301' and 'jos\\xe9'" in unclear["jos\u00e9"].why
    for one in unclear.values():
        run(one.advice.partition(": ")[2])
    assert listed(folder) == {} and set(graded(folder)) == {"ann", "jos\u00e9", "zed"}


def test_who_is_meant_is_guessed_by_the_roster(folder):
    roster = Roster([Student("s1", "Ann Lee", "ann@x.edu"), Student("s2", "Bob Ray"), Student("zed")])
    for name in ("#An Lee", "bobray2", "quentin"):
        put(folder / name / "starter.py")
    unclear = listed(folder, roster=roster)
    assert {path: (one.kind, one.student) for path, one in unclear.items()} == {
        "#An Lee": (Kind.NAME, "s1"), "bobray2": (Kind.UNKNOWN, "s2"), "quentin": (Kind.UNKNOWN, "")}
    for path in ("#An Lee", "bobray2"):
        run(unclear[path].advice)
    assert graded(folder, roster=roster) == {"s1": ["2.1"], "s2": ["2.1"], "zed": ["2.1"]}


def test_a_stray_folder_of_a_course_stops_nobody(folder):
    put(folder / "phase-02-paged-attention/labs/lab-01-block-allocator/starter.py")
    assert listed(folder)["phase-02-paged-attention"].kind is Kind.NOBODY
    assert list(graded(folder)) == ["zed"]


# ---- misnamed files


@pytest.mark.parametrize("name", [
    "block_pool_final(2).py", "lab21.py", "lab_2_1.py", "solution.py", "Untitled", "starter.py.txt", "starter.py~",
    "2.2/starter.py", "work/deep/pool.py", "starter-final.PY", "kv_cache_manager.py", "pool.txt",
])
@pytest.mark.parametrize("asked", [["2.1"], ["1.1", "2.1", "2.2"]])
def test_a_misnamed_file_is_listed_with_its_lab_and_a_command(folder, name, asked):
    put(folder / "ann" / name)
    (one,) = [one for one in listed(folder, asked).values() if one.student == "ann"]
    assert (one.path, one.lab, one.is_open) == (f"ann/{name}", "2.1", True)
    assert "2.1" not in graded(folder, asked)["ann"]
    assert "It looks like lab 2.1: it declares 21 of the 21 public names" in one.why
    run(one.advice)
    assert graded(folder, asked)["ann"] == ["2.1"]
    assert [one for one in listed(folder, asked).values() if one.student == "ann"] == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.number)
def test_each_lab_is_told_from_the_others(lab):
    starters = Starters(LABS)
    assert starters.guess(SOLVED[lab.number].encode()).lab == lab
    assert starters.guess(shipped_starter(lab).replace("\n", "\r\n").encode("utf-8-sig")).lab == lab


def test_names_alone_tell_a_lab():
    names = sorted(Starters(LABS).of(LAB).names)
    text = "".join(f"  def {name.split('.')[1]}(*a): ...\n" if "." in name else f"class {name}:\n" for name in names)
    assert Starters(LABS).guess(text.encode()).lab == LAB


def test_a_file_that_does_not_parse_is_told_by_its_lines(folder):
    put(folder / "ann/mine.py", TEXT + "\nx = (((\n'''")
    assert listed(folder)["ann/mine.py"].lab == "2.1"
    put(folder / "ann/mine.py", TEXT.replace("BlockPool", "Pool").replace("Queue", "List"))
    assert listed(folder)["ann/mine.py"].lab == "2.1"


def test_a_file_in_the_wrong_labs_place_is_graded_there_and_told(folder):
    asked = ["2.1", "2.2"]
    put(folder / "ann/2.2/starter.py")
    put(folder / "bob/2.1/starter.py", SOLVED["2.2"])
    put(folder / "bob/2.2/starter.py", SOLVED["2.1"])
    unclear = listed(folder, asked)
    assert {path: (one.kind, one.lab) for path, one in unclear.items() if one.is_open} == {
        "ann/2.2/starter.py": (Kind.WRONG_LAB, "2.1"), "bob/2.1/starter.py": (Kind.WRONG_LAB, "2.2"),
        "bob/2.2/starter.py": (Kind.WRONG_LAB, "2.1")}
    assert unclear["ann/2.2/starter.py"].why.startswith("2.2/starter.py is graded as lab 2.2.")
    for one in unclear.values():
        run(one.advice)
    assert listed(folder, asked) == {} and graded(folder, asked)["bob"] == asked


def test_a_file_of_a_lab_that_is_not_asked_names_the_lab_as_which_it_is_graded(folder):
    put(folder / "ann/starter.py", SOLVED["2.2"])
    one = listed(folder)["ann/starter.py"]
    assert (one.kind, one.lab, one.is_open, one.graded_as) == (Kind.WRONG_LAB, "2.2", False, "2.1")
    assert one.advice == ("If the assignment was lab 2.2, grade with --lab 2.2 and a new --out, or set the points of "
                          "lab 2.1 in overrides.csv.")
    put(folder / "ann/2.1.py", SOLVED["2.1"])
    (folder / "ann/starter.py").unlink()
    put(folder / "ann/2.2.py", SOLVED["2.1"] + "# again\n")
    one = listed(folder, ["2.1", "2.2"])["ann/2.2.py"]
    assert (one.is_open, one.graded_as) == (False, "2.2") and one.advice.startswith("Ask for the file of lab 2.2, or")


def test_the_starter_as_given_out_does_not_hide_the_work(folder):
    put(folder / "ann/starter.py", shipped_starter(LAB))
    put(folder / "ann/my pool.py")
    one = listed(folder)["ann/my pool.py"]
    assert (one.kind, one.lab, one.is_open) == (Kind.MISNAMED, "2.1", True)


def test_several_files_for_one_lab_are_listed(folder):
    put(folder / "ann/starter.py", "a = 1\n")
    put(folder / "ann/starter (1).py", "a = 2\n")
    (one,) = listed(folder).values()
    assert (one.kind, one.lab) == (Kind.SEVERAL, "2.1") and "2 files could be for lab 2.1" in one.why
    run(one.advice.partition(": ")[2])
    assert graded(folder)["ann"] == ["2.1"] and listed(folder) == {}


def test_further_files_change_nothing_and_are_few(folder):
    put(folder / "ann/starter.py")
    put(folder / "ann/copy.py")  # the same as the graded file
    put(folder / "ann/old.py", TEXT + "# older\n")
    put(folder / "ann/given.py", shipped_starter(LAB))
    for number in range(2 * MAX_FURTHER):
        put(folder / f"ann/helper{number}.py", f"x = {number}\n")
    unclear = listed(folder)
    assert len(unclear) == MAX_FURTHER and not any(one.is_open for one in unclear.values())
    assert unclear["ann/helper0.py"].why == "helper0.py is not graded. It fits no lab."
    assert "ann/copy.py" not in unclear and "ann/given.py" not in unclear


def test_a_copy_of_the_whole_course_has_no_strays(folder):
    for lab in LABS:
        for path in (lab.starter, lab.solution, lab.tests):
            put(folder / "ann" / lab.relative(path), path.read_text() if path != lab.starter else SOLVED[lab.number])
    for name in ("mini_vllm/block_pool.py", "course/lab/lab.py", "conftest.py", "setup.py"):
        put(folder / "ann" / name, (PROJECT_ROOT / name).read_text())
    assert listed(folder, [lab.number for lab in LABS]) == {} == listed(folder)
    (folder / "ann" / LAB.relative(LAB.starter)).unlink()
    assert listed(folder) == {}  # neither the engine's module nor the course's solution is the student's work


def test_a_notebook_where_several_labs_are_asked(folder):
    put(folder / "ann/block_allocator_2.ipynb", "{}")
    one = listed(folder, ["2.1", "2.2"])["ann/block_allocator_2.ipynb"]
    assert one.lab == "2.1" and "is a Jupyter notebook" in one.why
    assert listed(folder) == {}  # for a single lab, the reason for the missing score already says that it is a notebook


def test_what_lies_in_an_archive_is_listed_with_words(folder):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("work/pool.py", TEXT)
    (folder / "ann.zip").write_bytes(buffer.getvalue())
    one = listed(folder)["ann.zip/work/pool.py"]
    assert one.lab == "2.1" and one.advice.startswith("Unpack the archive into a folder ann")
    with zipfile.ZipFile(folder.parent / "class.zip", "w") as archive:
        for name in ("#odd/starter.py", "ann/pool.py", "zed/starter.py", "zed/old/pool.py"):
            archive.writestr(name, TEXT)
    unclear = listed(folder.parent / "class.zip")
    assert {path: (one.kind, one.student) for path, one in unclear.items()} == {
        "#odd": (Kind.NAME, ""), "ann/pool.py": (Kind.MISNAMED, "ann")}
    assert unclear["#odd"].advice == "Unpack the archive, and rename #odd to odd."


def test_a_platforms_label_is_kept(folder):
    put(folder / "leeann_7_123_my_pool.py")
    one = listed(folder)["leeann_7_123_my_pool.py"]
    assert (one.student, one.lab) == ("7", "2.1")
    run(one.advice)
    assert graded(folder)["7"] == ["2.1"]


# ---- items of no student


def test_files_in_the_root_that_belong_to_nobody(folder):
    roster = Roster([Student("ann", "Ann Lee"), Student("bob"), Student("zed")])
    for name in ("starter (1).py", "2.1.py", "stray", "pool of ann.txt"):
        put(folder / name)
    put(folder / "notes.txt", "Dear all")
    put(folder / "grades.csv", "id\n")
    for known in (None, roster):
        unclear = listed(folder, roster=known)
        assert {path: (one.kind, one.lab, one.is_open) for path, one in unclear.items()} == {
            "starter (1).py": (Kind.NOBODY, "2.1", True), "2.1.py": (Kind.NOBODY, "2.1", True),
            "stray": (Kind.NOBODY, "2.1", True), "pool of ann.txt": (Kind.NOBODY, "2.1", True),
            "notes.txt": (Kind.NOBODY, "", False), "grades.csv": (Kind.NOBODY, "", False)}
        assert set(graded(folder, roster=known)) == ({"ann", "bob", "zed"} if known else {"zed"})
    assert unclear["pool of ann.txt"].student == "ann"
    run(unclear["pool of ann.txt"].advice)
    assert graded(folder, roster=roster)["ann"] == ["2.1"]


def test_a_loose_file_among_folders_is_a_student_and_told(folder):
    for name in ("ann", "bob"):
        put(folder / name / "starter.py")
    put(folder / "Ann's pool.py")
    one = listed(folder)["Ann's pool.py"]
    assert (one.kind, one.student, one.is_open) == (Kind.LOOSE, "ann", False)
    assert graded(folder)["Ann's pool"] == ["2.1"]


# ---- the parts


def test_what_a_student_reads(folder):
    put(folder / "ann/lab21.py")
    submission = settle(find(folder, None)[0], None).submissions[0]
    taken = take_in(submission, LABS, [LAB])
    noted = with_notes(taken, Strays(LABS, [LAB], PROJECT_ROOT).of(submission, taken))
    assert noted.notes == ("ann/lab21.py was not graded as lab 2.1 because of its name. Your instructor decides "
                           "whether it counts; the right name would have been 2.1.py.",)


@pytest.mark.parametrize("text", [
    "(" * 300_000, "async def " * 30_000, "class a:\n" * 30_000, "'''" + "\n" * 300_000, " " * 300_000 + "def x",
    "".join(f"{' ' * depth}class a{depth}:\n" for depth in range(700)), "def " * 80_000, "-" * 400_000 + "1",
    "class a" + "b" * 250_000, "\t" * 200_000, "def a():\n" + "\f" * 200_000,
])
def test_no_text_takes_long(text):
    begun = time.process_time()
    Starters([LAB]).guess(text.encode())
    assert time.process_time() - begun < 2.0  # usually a twentieth of that; the limit allows for a busy machine


def test_names_are_found_by_their_indent():
    text = "class A:\n\tdef b(self):\n\t\tdef c(): ...\n\tasync def d(self): ...\ndef e(): 1\nclass F: x\ndef g(): 1"
    assert names_in(text) == {"A", "A.b", "A.b.c", "A.d", "e", "F", "g"}
    assert not Starters([LAB]).guess(b" " * MAX_CHARACTERS + b"\n" + TEXT.encode()).labs


def test_so_much_is_looked_at_and_no_more(folder, monkeypatch):
    looked = []
    real = Starters.guess
    monkeypatch.setattr(Starters, "guess", lambda self, content: looked.append(content) or real(self, content))
    for number in range(3 * MAX_LOOKED_AT):
        put(folder / f"ann/a{number}.py", f"x = {number}\n")
    put(folder / "bob/big.py", "#" * 500_000)
    listed(folder)
    assert len(looked) == MAX_LOOKED_AT
    budget = Budget()
    wanted = [budget.wanted_of("notes", 200_000) for _ in range(20)]
    assert sum(map(bool, wanted)) == MAX_ALL_GUESSED_BYTES // 200_000 and budget.wanted_of("data", 10**9) == 0


@pytest.mark.parametrize("name, student", [
    ("ann", "ann"), ("hw3-ann-final", "ann"), ("Lee_Ann", "ann"), ("ANNLEE2", "ann"), ("josef", "jo"),
    ("José Ortiz", "jo"),
    ("joseortis", "jo"), ("lee", ""), ("pool", ""), ("", ""), ("x" * 10_000, ""),
])
def test_a_name_means_one_student_or_none(name, student):
    class_ = [Student("ann", "Ann Lee"), Student("jo", "Jose Ortiz", "josef@x"), Student("s3", "Bo Lee")]
    assert likely_student(name, class_, ()) == student


def test_of_two_alike_the_one_who_handed_in_nothing():
    twins = [Student("annika1"), Student("annika2")]
    assert likely_student("annika", twins, ()) == "" and likely_student("annika", twins, ["annika2"]) == "annika2"


def test_names_that_mean_labs():
    assert [is_labs_file(name, LABS) for name in ("starter.py", "2.1.py", "lab21.py", "block_allocator.py", "ann.py",
                                                  "s21.py", "2021.py")] == [True] * 4 + [False] * 3
    assert [(lab := reminds_of(name, LABS)) and lab.number for name in (
        "lab21.py", "my_block_allocator.py", "2-1 final.py", "final(2).py", "v1.1 of 2.1.py")] == [
        "2.1", "2.1", "2.1", None, None]
    assert [may_be_python(name) for name in ("a", "a.txt", "starter.py~", "a.pyc", "a.pdf", "a.ipynb", "a.py")] == [
        True, True, True, False, False, False, False]


@pytest.mark.parametrize("name", ["a b", "it's", "$(x)", "-n", "a\nb", "\u202e", os.fsdecode(b"\xff\x41"), "e\u0301",
                                  "\\n"])
def test_a_quoted_path_is_the_path(tmp_path, name):
    (tmp_path / name).touch()
    command = f"[ -f {quoted(tmp_path / name)} ]"
    assert command.isprintable()
    run(command)
