"""Submissions of a class: which student each belongs to, which file is which lab's, and what is said about odd ones."""

import gzip
import io
import json
import os
import re
import stat
import subprocess
import tarfile
import zipfile

import pytest

from course.grading.intake.assign_owners import settle
from course.grading.intake.find_submissions import find
from course.grading.intake.lab_names import lab_of
from course.grading.intake.lms_names import label_of, read_pattern
from course.grading.intake.match_labs import MAX_EARLIER, take_in
from course.grading.intake.read_files import MAX_MEMBERS
from course.grading.intake.roster import Roster, Student, check_id, read_roster
from course.grading.intake.unclear import Kind
from course.lab.lab import PROJECT_ROOT, LabError, discover, find_lab

LABS = discover()
LAB = find_lab("2.1", LABS)
TEXT = b"class BlockPool:\n    pass\n"


def taken(folder, asked=(LAB,), roster=None, **options):
    """Return what was taken in for each student."""
    found, _ = find(folder, options.pop("pattern", None))
    return {submission.student.id: take_in(submission, LABS, list(asked))
            for submission in settle(found, roster, labs=LABS, **options).submissions}


def settled(folder, roster=None, **options):
    return settle(find(folder, options.pop("pattern", None))[0], roster, labs=LABS, **options)


def run(command):
    subprocess.run(["bash", "-c", command], check=True)


def test_the_names_in_the_manual_belong_to_the_ids_next_to_them():
    text = (PROJECT_ROOT / "docs/grading.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (Moodle|Canvas|Blackboard|none) \| (.*) \| `(\w+)` \|$", text, re.M)
    assert len(rows) == 4
    for _, names, student in rows:
        for name in re.findall("`(.*?)`", names):
            label = label_of(name.partition("/")[0], "/" in name)
            assert label is not None and label.keys[0] == student, name


def only(folder, **options):
    """Return the only file of the only student."""
    (result,) = taken(folder, **options).values()
    (file,) = result.files.values()
    return file


def put(path, content=TEXT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(entries):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for entry, content in entries:
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


# ---- shapes


@pytest.mark.parametrize("name", [
    "ann/starter.py", "ann/2.1.py", "ann/lab-01-block-allocator/starter.py", "ann/block_allocator.py",
    "ann/2.1/starter.py", "ann/phase-02-paged-attention/labs/lab-01-block-allocator/starter.py", "ann/starter (1).py",
    "ann/work/starter.py", "ann.py", "ann_2.1.py", "Ann Lee_7_assignsubmission_file_/starter.py",
    "leeann_7_123_starter.py", "leeann_LATE_7_123_starter-2.py", "Lab_ann_attempt_2026-01-02-03-04-05_starter.py",
])
def test_every_shape_gives_the_file(tmp_path, name):
    put(tmp_path / name)
    file = only(tmp_path)
    assert (file.content, file.problem) == (TEXT, "")


@pytest.mark.parametrize("name, content", [
    ("ann.zip", zipped({"starter.py": TEXT})),
    ("ann.zip", zipped({"phase-02-x/labs/lab-01-block-allocator/starter.py": TEXT, "__MACOSX/starter.py": b"\0"})),
    ("ann.tgz", gzip.compress(tarred([(tarfile.TarInfo("./work/starter.py"), TEXT)]))),
    ("ann.tar.gz", gzip.compress(tarred([(tarfile.TarInfo("2.1.py"), TEXT)]))),
    ("ann.tar", tarred([(tarfile.TarInfo("starter.py"), TEXT)])),
    ("ann/all.zip", zipped({"starter.py": TEXT})),
    ("ann/2.1.zip", zipped({"starter.py": TEXT})),
])
def test_archives_are_read_where_they_lie(tmp_path, name, content):
    put(tmp_path / name, content)
    file = only(tmp_path)
    assert (file.content, file.problem) == (TEXT, "")


def test_one_archive_may_hold_all(tmp_path):
    inner = zipped({"starter.py": b"x = 1\n"})
    all_of_them = {"subs/ann/starter.py": TEXT, "subs/bob.zip": inner, "subs/c_2.1.py": TEXT}
    path = put(tmp_path / "class.zip", zipped(all_of_them))
    files = {student: result.files["2.1"].content for student, result in taken(path).items()}
    assert files == {"ann": TEXT, "bob": b"x = 1\n", "c": TEXT}


METADATA = """\
submission_11:
  :submitters:
  - :name: Ann Lee
    :sid: '0071'
    :email: ann@x.edu
  - :name: Bob
    :sid:
    :email: bob@x.edu
  :created_at: 2026-01-01 00:00:00 Z
  :history:
  - :id: 5
    :submitters:
    - :name: Eve
      :sid: '666'
"""


@pytest.mark.parametrize("is_archive", [False, True])
def test_a_gradescope_export_names_its_groups(tmp_path, is_archive):
    put(tmp_path / "in/submission_11/starter.py")
    put(tmp_path / "in/submission_metadata.yml", METADATA.encode())
    if is_archive:
        put(tmp_path / "in.zip", zipped({"submission_11/starter.py": TEXT, "submission_metadata.yml": METADATA}))
    result = taken(tmp_path / ("in.zip" if is_archive else "in"))
    assert {student: one.files["2.1"].content for student, one in result.items()} == {"0071": TEXT, "bob@x.edu": TEXT}


def test_a_whole_course_gives_every_lab(tmp_path):
    for lab in LABS:
        put(tmp_path / "ann" / lab.relative(lab.starter), lab.number.encode())
    put(tmp_path / "ann/conftest.py", b"raise SystemExit")
    put(tmp_path / "ann" / LAB.relative(LAB.solution), b"solution")
    (result,) = taken(tmp_path, asked=LABS).values()
    assert {number: file.content.decode() for number, file in result.files.items()} == {n: n for n in result.files}
    assert len(result.files) == len(LABS) and result.notes == ()


# ---- which student


def test_the_roster_knows_ids_addresses_and_names(tmp_path):
    roster = Roster([Student("s1", "Jane Smith", "jane@x.edu"), Student("s2", "Lee, Ann"), Student("s3", "Bob Ray")])
    assert [roster.find([key]) for key in ("S1", "jane@x.edu", "jane", "Jane Smith", "smithjane", "annlee", "zoe")] == [
        "s1", "s1", "s1", "s1", "s1", "s2", None]
    put(tmp_path / "smithjane_9_1_starter.py")
    put(tmp_path / "leeann_8_2_starter.py")
    result = taken(tmp_path, roster=roster)
    assert {student: one.is_submitted for student, one in result.items()} == {"s1": True, "s2": True, "s3": False}
    assert result["s3"].files["2.1"].is_missing


@pytest.mark.parametrize("text", [
    "id,name,email\ns1,Jane,j@x\ns2,Bob,\n", "\ufeffStudent ID;Full Name\ns1;Jane\n\ns2;Bob\n",
    "Student,ID,SIS User ID,Section\n    Points Possible,,,\nJane,s1,77,A\nBob,s2,78,A\n",
    "First name\tLast name\tUsername\nJane\t\ts1\nBob\t\ts2\n",
])
def test_a_roster_is_read_whatever_wrote_it(tmp_path, text):
    roster = read_roster(put(tmp_path / "roster.csv", text.encode()))
    assert {student.id: student.name for student in roster.students.values()} == {"s1": "Jane", "s2": "Bob"}


@pytest.mark.parametrize("text, words", [
    ("name\nJane\n", "no column contains the student's id; the columns are 'name'"), ("id\n", "has no rows"),
    ("id\ns1\ns1\n", "line 3: 's1' appears twice"), ("id\nann\nAnn\n", "also as 'ann'"),
    ("id,name\n,Jane\n", "line 2: '' cannot be"), ("id\n../x\n", "'../x' cannot be"), ("id\n.x\n", "'.x' cannot be"),
])
def test_a_roster_that_is_none_is_refused(tmp_path, text, words):
    with pytest.raises(LabError, match="roster.csv") as error:
        read_roster(put(tmp_path / "roster.csv", text.encode()))
    assert words in str(error.value)


@pytest.mark.parametrize("text", ["a/b", "..", ".a", "-rf", "a\x1b", "a\u202eb", "", "a" * 81, "a."])
def test_ids_that_cannot_be_folders(text):
    with pytest.raises(LabError):
        check_id(text, "here")


def test_who_is_not_on_the_roster_is_named(tmp_path):
    put(tmp_path / "ann.py")
    put(tmp_path / "eve/starter.py")
    roster = Roster([Student("ann"), Student("bob")])
    assert list(taken(tmp_path, roster=roster)) == ["ann", "bob"]
    (unclear,) = settled(tmp_path, roster=roster).unclear
    assert (unclear.path, unclear.kind, unclear.student) == ("eve", Kind.UNKNOWN, "")
    assert unclear.why == "eve is not on the roster." and "--allow-unknown" in unclear.advice
    with pytest.raises(LabError, match="Nothing can be graded(.|\n)*eve is not on the roster"):
        settled(tmp_path, roster=Roster([Student("zoe")]))
    assert list(taken(tmp_path, roster=roster, allow_unknown=True)) == ["ann", "bob", "eve"]


def test_of_two_submissions_neither_counts_and_both_are_named(tmp_path):
    put(tmp_path / "ann/starter.py")
    put(tmp_path / "ann.zip", zipped({"starter.py": TEXT}))
    put(tmp_path / "bob/starter.py")
    result = taken(tmp_path, takes_latest=True)
    file = result["ann"].files["2.1"]
    assert file.problem == "ann handed in twice: ann and ann.zip. Keep one of them."
    assert file.is_undecided and not file.is_missing and not file.content
    assert result["bob"].files["2.1"].content == TEXT
    (unclear,) = settled(tmp_path).unclear
    assert (unclear.kind, unclear.student) == (Kind.TWICE, "ann")
    run(unclear.advice.partition(": ")[2])
    assert taken(tmp_path)["ann"].files["2.1"].content == TEXT and not settled(tmp_path).unclear


def test_attempts_with_numbers_are_in_order_and_the_last_is_current(tmp_path):
    put(tmp_path / "leeann_7_1_starter.py", b"first = 1\n")
    put(tmp_path / "leeann_7_3_starter-10.py")
    put(tmp_path / "leeann_7_2_starter-9.py", b"second = 2\n")
    (result,) = taken(tmp_path).values()
    assert result.files["2.1"].content == TEXT
    assert [file.content for file in result.earlier["2.1"]] == [b"first = 1\n", b"second = 2\n"]
    (result,) = taken(tmp_path, takes_latest=True).values()
    assert result.files["2.1"].content == TEXT and result.earlier["2.1"] == ()


def test_of_many_attempts_the_oldest_are_left_out(tmp_path):
    for number in range(MAX_EARLIER + 3):
        put(tmp_path / f"Lab_ann_attempt_2026-03-01-10-00-{number:02}_starter.py", f"x = {number}\n".encode())
    (result,) = taken(tmp_path).values()
    assert [file.content for file in result.earlier["2.1"]] == [b"x = %d\n" % n for n in range(2, MAX_EARLIER + 2)]
    assert result.files["2.1"].content == b"x = %d\n" % (MAX_EARLIER + 2)
    assert result.notes == ("2 more of the earlier attempts were left out.",)


def test_the_latest_counts_only_where_names_say_which_it_is(tmp_path):
    pattern = read_pattern(r"(?P<student>\w+)-(?P<attempt>\d)[a-z]?\.py")
    put(tmp_path / "ann-1a.py", b"first = 1\n")
    put(tmp_path / "ann-1b.py", b"other = 1\n")
    put(tmp_path / "ann-2.py")
    problem = only(tmp_path, pattern=pattern).problem
    assert re.search("ann handed in twice.*--latest takes the later one", problem)
    assert only(tmp_path, pattern=pattern, takes_latest=True).content == TEXT
    put(tmp_path / "ann-2b.py", b"other = 2\n")
    for takes_latest in (False, True):
        assert "Keep one of them." in only(tmp_path, pattern=pattern, takes_latest=takes_latest).problem


def test_a_pattern_says_whose(tmp_path):
    put(tmp_path / "hw3-ann-final.py")
    put(tmp_path / "notes.py")
    pattern = read_pattern(r"hw3-(?P<student>\w+)-final\.py")
    assert list(taken(tmp_path, pattern=pattern)) == ["ann"]
    assert [one.shown for one in find(tmp_path, pattern)[1]] == ["notes.py"]
    for text, words in (("(", "is not a regular expression"), (r"\w+", "no group named student")):
        with pytest.raises(LabError, match=words):
            read_pattern(text)


def test_ann_and_Ann_would_share_a_folder(tmp_path):
    put(tmp_path / "ann/starter.py")
    put(tmp_path / "Ann.py")
    put(tmp_path / "bob/starter.py")
    assert list(taken(tmp_path)) == ["bob"]
    first, second = settled(tmp_path).unclear
    assert [first.path, second.path] == ["Ann.py", "ann"] and first.kind is second.kind is Kind.TWINS
    run(first.advice)
    assert sorted(taken(tmp_path)) == ["Ann-2", "ann", "bob"]


def test_one_students_course_is_no_class(tmp_path):
    put(tmp_path / "phase-02-x/labs/lab-01-block-allocator/starter.py")
    with pytest.raises(LabError, match="looks like one student's course"):
        find(tmp_path, None)
    with pytest.raises(LabError, match="contains no submissions"):
        (tmp_path / "empty").mkdir()
        find(tmp_path / "empty", None)


def test_names_of_platforms():
    assert label_of("Jane Smith_123_assignsubmission_file_", True).keys == ("123", "Jane Smith")
    assert label_of("Jane Smith_123_assignsubmission_onlinetext_", True) is None
    late = label_of("smithjane_LATE_1_2_my_file-3.py", False)
    assert (late.keys, late.file, late.attempt, late.is_late) == (("1", "smithjane"), "my_file.py", (3,), True)


@pytest.mark.parametrize("name, number", [
    ("lab-01-block-allocator/solution.py", None), ("2.1/conftest.py", None), ("2.1/test_lab.py", None),
    ("2.1/starter.new.py", None), ("2.2/starter.py", "2.2"), ("Starter.PY", "2.1"), ("other.py", None),
    ("conftest.py", None), ("starter_2.2.py", "2.2"), ("2.1/2.1.py", "2.1"), ("starter.ipynb", "2.1"),
])
def test_only_expected_names_are_a_labs(name, number):
    lab = lab_of(name, LABS, LAB)
    assert (lab and lab.number) == number


# ---- oddities

NOTEBOOK = json.dumps({"cells": [], "nbformat": 4}).encode()


@pytest.mark.parametrize("name, content, words", [
    ("starter.py", zipped({"a": b"1"}), "starter.py contains a zip archive, not Python"),
    ("starter.py", NOTEBOOK, "contains a Jupyter notebook; hand in starter.py"),
    ("starter.ipynb", NOTEBOOK, "starter.ipynb is a Jupyter notebook; hand in starter.py"),
    ("starter.py", "x = 1".encode("utf-16"), "is UTF-16; save it as UTF-8"),
    ("starter.py", "x = 1".encode("utf-16-le"), "is UTF-16 without a byte-order mark"),
    ("starter.py", "a = 1\nb = 'ä'".encode("latin-1"), "is not UTF-8 (byte 0xe4 in line 2; in Latin-1 that is ä)"),
    ("starter.py", b"", "is empty"), ("starter.py", b" \n\n", "is empty"), ("starter.py", b"\xef\xbb\xbf", "is empty"),
    ("starter.py", b"x = 1\ny = '\0'\n", "has a nul byte in line 2"),
    ("starter.py", b"#" * 6_000_000, "has 6.0 MB; the limit for a lab's file is 1 MB"),
    ("starter.txt", TEXT, "is not named like a Python file (.txt)"), ("starter.py.txt", TEXT, "(.txt)"),
    ("starter.zip", b"PK\x03\x04", "is a damaged archive, or not an archive"),
    ("work.zip", zipped({"starter.py": b"#" * 4_000_000}), "would grow to more than 100 times"),
    ("work.tgz", gzip.compress(bytes(4_000_000)), "would grow to more than 100 times"),
    ("work.tgz", b"\x1f\x8b1234", "is a damaged archive"), ("work.tar", b"x" * 10_000, "is a damaged archive"),
    ("mine.py", TEXT, "There is no starter.py in the submission; it contains mine.py."),
    ("solution.py", TEXT, "There is no starter.py in the submission; it contains solution.py."),
    ("lab.ipynb", b"{}", "lab.ipynb is a Jupyter notebook; hand in starter.py."),
])
def test_what_it_is_is_said(tmp_path, name, content, words):
    put(tmp_path / "ann" / name, content)
    file = only(tmp_path)
    assert words in file.problem and file.content == b""


def test_a_byte_order_mark_is_taken_off(tmp_path):
    put(tmp_path / "ann/starter.py", b"\xef\xbb\xbf" + TEXT)
    assert only(tmp_path).content == TEXT


def test_links_and_pipes_are_not_followed(tmp_path):
    secret = put(tmp_path / "secret.py")
    for student, make in {"link": lambda path: path.symlink_to(secret), "pipe": os.mkfifo}.items():
        (tmp_path / "in" / student).mkdir(parents=True)
        make(tmp_path / "in" / student / "starter.py")
    (tmp_path / "in/whole").symlink_to(tmp_path)
    (tmp_path / "in/folder").mkdir()
    (tmp_path / "in/folder/2.1").symlink_to(tmp_path)
    problems = {student: one.files["2.1"].problem for student, one in taken(tmp_path / "in").items()}
    assert problems == {"link": "starter.py is a symbolic link.", "pipe": "starter.py is a named pipe.",
                        "whole": "whole is a symbolic link.", "folder": "2.1 is a symbolic link."}


def entry(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize("info, words", [
    (entry("starter.py", tarfile.SYMTYPE, "/etc/passwd"), "is a symbolic link"),
    (entry("starter.py", tarfile.LNKTYPE, "other"), "is a hard link"),
    (entry("starter.py", tarfile.FIFOTYPE), "is a named pipe"), (entry("starter.py", tarfile.CHRTYPE), "not a regular"),
    (entry("../starter.py"), "leaves its folder"), (entry("/starter.py"), "absolute path"),
])
def test_nothing_odd_comes_out_of_a_tar(tmp_path, info, words):
    put(tmp_path / "ann.tar", tarred([(info, b"")]))
    assert words in only(tmp_path).problem


def test_nothing_odd_comes_out_of_a_zip(tmp_path):
    link = zipfile.ZipInfo("starter.py")
    link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    for student, name in {"link": link, "up": "../starter.py", "root": "/starter.py", "win": "c:/starter.py",
                          "back": "..\\..\\starter.py"}.items():
        put(tmp_path / f"{student}.zip", zipped({name: TEXT}))
    problems = {student: one.files["2.1"].problem for student, one in taken(tmp_path).items()}
    assert "is a symbolic link" in problems["link"]
    assert "leaves its folder" in problems["up"] and "leaves its folder" in problems["back"]
    assert "absolute path" in problems["root"] and "absolute path" in problems["win"]


def test_several_files_for_one_lab_are_named(tmp_path):
    put(tmp_path / "ann/starter.py", b"a = 1\n")
    put(tmp_path / "ann/2.1.py", b"a = 2\n")
    assert only(tmp_path).problem == "2 files could be for lab 2.1: 2.1.py, starter.py. Hand in only one."
    put(tmp_path / "ann/2.1.py", b"a = 1\n")
    assert only(tmp_path).content == b"a = 1\n"


def test_names_that_differ_only_in_capitals_are_two(tmp_path):
    put(tmp_path / "ann.zip", zipped({"starter.py": b"a = 1\n", "Starter.py": b"a = 2\n"}))
    assert "2 files could be for lab 2.1" in only(tmp_path).problem


def test_too_many_files_are_too_many(tmp_path):
    put(tmp_path / "ann.zip", zipped({f"{number}.txt": b"" for number in range(MAX_MEMBERS)} | {"starter.py": TEXT}))
    assert "more than 2000 files" in only(tmp_path).problem


def test_archives_do_not_nest_for_ever(tmp_path):
    content = zipped({"starter.py": TEXT})
    for _ in range(3):
        content = zipped({"a.zip": content})
    put(tmp_path / "ann.zip", content)
    assert only(tmp_path).content == b"" and "archive in an archive" in taken(tmp_path)["ann"].files["2.1"].problem


def test_what_was_left_out_stands_in_the_notes(tmp_path):
    put(tmp_path / "ann/starter.py")
    (tmp_path / "ann/data.py").symlink_to("/etc/passwd")
    assert taken(tmp_path)["ann"].notes == ("data.py is a symbolic link; it was left out.",)


def test_names_that_students_chose_cannot_draw_on_the_terminal(tmp_path):
    put(tmp_path / "ann.zip", zipped({"work/\x1b[2Jstarter.py": TEXT}))
    put(tmp_path / "bob/starter-1.py", b"a = 1\n")
    put(tmp_path / "bob/\u202e/starter.py", b"a = 2\n")
    for result in taken(tmp_path).values():
        problem = result.files["2.1"].problem
        assert problem and problem.isprintable()
        assert all(note.isprintable() for note in result.notes)
    put(tmp_path / "\x1b[2J.pdf", b"")
    found, left_out = find(tmp_path, read_pattern("(?P<student>ann).zip"))
    assert [one.shown for one in left_out] == ["?[2J.pdf", "bob"]


def test_an_archive_that_never_ends_is_given_up(tmp_path, monkeypatch):
    def for_ever(*_):
        while True:
            pass

    monkeypatch.setattr("course.grading.intake.archives._read_zip", for_ever)
    monkeypatch.setattr("course.grading.intake.archives.MAX_CPU_S", 0.05)
    put(tmp_path / "ann.zip", b"")
    assert only(tmp_path).problem == "ann.zip is an archive that takes too long to read."
