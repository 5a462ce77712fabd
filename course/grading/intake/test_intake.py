"""What is handed in is read within limits, belongs to one student and one lab, or is listed: nothing is guessed."""

import bz2
import gzip
import io
import os
import re
import resource
import stat
import struct
import sys
import tarfile
import unicodedata
import zipfile
from datetime import datetime, timedelta

import pytest

from course.grading.intake import layout, platforms, reader
from course.grading.intake.layout import lab_of, take_in
from course.grading.intake.platforms import _of_canvas, _of_folder, _of_moodle, find
from course.grading.intake.reader import Refused
from course.grading.intake.roster import is_id, read_roster
from course.grading.intake.times import read_time, read_times
from course.lab.lab import PROJECT_ROOT, LabError, discover, find_lab

LABS = discover()
LAB, OTHER = find_lab("2.1", LABS), find_lab("2.2", LABS)
STARTER = LAB.relative(LAB.starter)


def lay(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def zipped(files, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return buffer.getvalue()


def tarred(files, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            if isinstance(content, dict):
                for field, value in content.items():
                    setattr(entry, field, value)
                content = b""
            entry.size = len(content) if not entry.pax_headers else 0
            archive.addfile(entry, io.BytesIO(content.encode() if isinstance(content, str) else content))
    return buffer.getvalue()


def roster(tmp_path, text="id,name,email,moodle,canvas\nann,Ann Lee,ann@x.org,7,70\nbob,Bob,,8,80\n"):
    path = tmp_path / "roster.csv"
    path.write_text(text)
    return read_roster(path)


def found_in(folder, platform="folder", known=None, asked=(LAB,)):
    """Return the text or the problem of each student and asked lab, and the paths that are listed."""
    found = find(folder, platform, known)
    taken = {one.student.id: take_in(one, LABS, asked, PROJECT_ROOT) for one in found.submissions}
    files = {(student, lab): file.content.decode() or file.problem
             for student, one in taken.items() for lab, file in one.files.items()}
    return files, [one.path for one in [*found.unclear, *(each for one in taken.values() for each in one.unclear)]]


def read_one(folder):
    (submission,) = find(folder, "folder", None).submissions
    return layout.read(submission)


# ---- whose it is


def test_the_names_in_the_manual_belong_to_the_ids_next_to_them():
    rules = {"folder": _of_folder, "moodle": _of_moodle, "canvas": _of_canvas}
    text = (PROJECT_ROOT / "docs/grading.md").read_text(encoding="utf-8").partition("| `--platform`")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| `(\w+)` \|$", text, re.M)
    assert [row[0] for row in rows] == ["folder", "moodle", "canvas"]
    for platform, names, student in rows:
        for name in re.findall("`([^`]+)`", names):
            top, slash, rest = name.partition("/")
            assert [label.keys for label in rules[platform](top, bool(slash))] == [(student,)], name


@pytest.mark.parametrize("rule, name, is_folder, expected", [
    (_of_moodle, "Jane_123455_123456_assignsubmission_file_", True, ("123456", "")),
    (_of_moodle, "Jane_123455_123456_assignsubmission_file", True, ("123456", "")),
    (_of_moodle, "Jane_123455_123456_assignsubmission_file_a_b.py", False, ("123456", "a_b.py")),
    (_of_moodle, "_9_8_assignsubmission_file_", True, ("8", "")),
    (_of_moodle, "Jane_9_assignsubmission_file__8_assignsubmission_file_", True, "does not have one"),
    (_of_moodle, "Jane_9_assignsubmission_file_x_8_assignsubmission_file_y.py", False, "does not have one"),
    (_of_moodle, "Jane_9_assignsubmission_onlinetext_", True, "is not a file"),
    (_of_moodle, "Jane_９_assignsubmission_file_", True, "does not have one"),
    (_of_canvas, "smithjane_LATE_12_34_starter-1.py", False, ("12", "starter.py")),
    (_of_canvas, "van_der_berg_12_34_2.1.py", False, ("12", "2.1.py")),
    (_of_canvas, "smith_12_345_678_starter.py", False, "can be read in two ways"),
    (_of_canvas, "smith_12_34_b_56_78_starter.py", False, "can be read in two ways"),
    (_of_canvas, "smith_12_text.html", False, "does not have one"),
    (_of_canvas, "smith_12_34_starter.py", True, "is a folder"),
    (_of_folder, "ann.tar.gz", False, ("ann", "")), (_of_folder, "Ann.B.ZIP", False, ("Ann.B", "")),
    (_of_folder, "ann.py", False, "is neither a folder"),
])
def test_a_name_counts_if_it_can_be_read_in_one_way(rule, name, is_folder, expected):
    labels = rule(name, is_folder)
    if isinstance(expected, str):
        assert expected in labels
    else:
        assert [(label.keys[0], label.file, label.is_late) for label in labels] == [(*expected, "LATE" in name)]


def test_a_display_name_does_not_make_a_file_another_students(tmp_path):
    lay(tmp_path / "in", {"Jane_7_8_assignsubmission_file_/starter.py": "jane"})
    files, left_out = found_in(tmp_path / "in", "moodle", roster(tmp_path))
    assert files == {("ann", "2.1"): "Nothing was handed in.", ("bob", "2.1"): "jane"} and not left_out


def test_a_lone_students_folder_is_never_a_class(tmp_path):
    folder = lay(tmp_path / "in", {"bob/ann/2.1.py": "forged", "bob/zoe/2.1.py": "forged too", "bob/notes.txt": ""})
    files, left_out = found_in(folder, known=roster(tmp_path))
    assert files["ann", "2.1"] == "Nothing was handed in." and files["bob", "2.1"].startswith("2 files are lab 2.1")
    assert left_out == ["bob/notes.txt", "bob/zoe/2.1.py"]
    archive = lay(tmp_path / "zip", {"bob.zip": zipped({"ann/2.1.py": "forged"})})
    assert found_in(archive, known=roster(tmp_path))[0]["ann", "2.1"] == "Nothing was handed in."


def test_who_is_not_on_the_roster_or_cannot_be_an_id_is_listed(tmp_path):
    names = ["eve", "#ann", "-rf", "..dots", "new\nline", "x" * 120, "\u202etxt", os.fsdecode(b"bad\xff"), ".ann"]
    folder = lay(tmp_path / "in", {f"{name}/2.1.py": "x" for name in ["ann", *names]})
    lay(folder, {".git/config": "", "__MACOSX/ann/2.1.py": "", "._ann": "", "ann.py": "", ".DS_Store": ""})
    files, left_out = found_in(folder, known=roster(tmp_path))
    assert files == {("ann", "2.1"): "x", ("bob", "2.1"): "Nothing was handed in."}
    assert left_out == sorted([*names, "ann.py"])
    files, left_out = found_in(folder)
    assert set(files) == {("ann", "2.1"), ("eve", "2.1")} and left_out == sorted([*names[1:], "ann.py"])
    with pytest.raises(LabError, match=r"nothing that can be graded.\n  eve: 'eve' is not on the roster."):
        find(lay(tmp_path / "other", {"eve/2.1.py": ""}), "folder", roster(tmp_path))


@pytest.mark.parametrize("names", [
    ("ann/2.1.py", "ann.zip"), ("josé/2.1.py", unicodedata.normalize("NFD", "josé.zip"))])
def test_of_two_submissions_neither_counts(tmp_path, names):
    folder = lay(tmp_path, {names[0]: "one", names[1]: zipped({"2.1.py": "two"}), "bob/2.1.py": "bob"})
    found = find(folder, "folder", None)
    (twice,) = [one for one in found.submissions if one.problem]
    taken = take_in(twice, LABS, [LAB], PROJECT_ROOT)
    assert taken.files["2.1"].is_undecided and not taken.files["2.1"].is_attempt and "two submissions" in twice.problem
    assert [one.student for one in found.unclear] == [twice.student.id]


def test_two_ids_that_are_one_folder_on_some_disks_are_left_out(tmp_path):
    files, left_out = found_in(lay(tmp_path, {"ann.zip": zipped({}), "Ann.zip": zipped({}), "bob/2.1.py": "x"}))
    assert set(files) == {("bob", "2.1")} and sorted(left_out) == ["Ann.zip", "ann.zip"]


@pytest.mark.parametrize("name, words", [
    ("Jane_7_assignsubmission_file_/a.py", "add --platform moodle"), ("smith_1_2_a.py", "add --platform canvas"),
    ("submission_metadata.yml", "add --platform gradescope"), ("phase-01-intro/x", "looks like one student's course")])
def test_a_download_is_not_taken_for_a_folder_per_student(tmp_path, name, words):
    with pytest.raises(LabError, match=words):
        find(lay(tmp_path, {"ann/2.1.py": "x", name: ""}), "folder", None)


def test_canvas_and_flat_moodle_give_several_files(tmp_path):
    lay(tmp_path / "c", {"leeann_LATE_70_1_2.1.py": "a", "leeann_LATE_70_2_2.2-1.py": "b", "leeann_70_3_x.pdf": "",
                         "bob_80_4_work.zip": zipped({"w/2.1.py": "c"})})
    files, left_out = found_in(tmp_path / "c", "canvas", roster(tmp_path), [LAB, OTHER])
    assert [files[key] for key in (("ann", "2.1"), ("ann", "2.2"), ("bob", "2.1"))] == ["a", "b", "c"]
    assert left_out == ["leeann_70_3_x.pdf"]
    (ann, _) = find(tmp_path / "c", "canvas", roster(tmp_path)).submissions
    assert take_in(ann, LABS, [LAB], PROJECT_ROOT).notes[0] == "Its name says that it is late."
    lay(tmp_path / "m", {"Ann_7_assignsubmission_file_2.1.py": "a", "Ann_7_assignsubmission_file_2.2.py": "b"})
    files, left_out = found_in(tmp_path / "m", "moodle", roster(tmp_path), [LAB, OTHER])
    assert [files["ann", lab] for lab in ("2.1", "2.2")] == ["a", "b"] and not left_out


METADATA = """---
submission_1:
  :submitters:
  - :name: 'Zoe aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
      - :sid: bob
      :email: bob@x.org'
    :sid: ann
    :email: zoe@x.org
  - :name: No Number
    :sid: ''
    :email: Bob@x.org
  :created_at: 2026-03-01 10:00:00.123456000 -08:00
  :history:
  - :submitters:
    - :sid: eve
submission_2:
  :submitters: []
"""


def test_gradescopes_table_names_groups_and_times(tmp_path):
    pytest.importorskip("yaml")
    folder = lay(tmp_path / "in", {"submission_metadata.yml": METADATA, "submission_1/starter.py": "x",
                                   "submission_2/starter.py": "y", "submission_3/starter.py": "z"})
    known = roster(tmp_path, "id,email\nann,\nbob,bob@x.org\neve,\n")
    found = find(folder, "gradescope", known)
    assert [(one.student.id, len(one.parts)) for one in found.submissions] == [("ann", 1), ("bob", 1), ("eve", 0)]
    assert found.submissions[0].parts[0].label.submitted.isoformat() == "2026-03-01T10:00:00-08:00"
    assert [one.path for one in found.unclear] == ["submission_2", "submission_3"]
    assert {one.student.id for one in find(folder, "gradescope", None).submissions} == {"ann", "Bob@x.org"}
    (folder / "submission_metadata.yml").write_text(METADATA.replace("2026-03-01 10", "yesterday"))
    with pytest.raises(LabError, match="submission_metadata.yml, submission_1: 'yesterday:00:00.* is not a time"):
        find(folder, "gradescope", known)
    for text in ("a: [", "\t", "a: &a [*a]"):
        (folder / "submission_metadata.yml").write_text(text)
        with pytest.raises(LabError):
            find(folder, "gradescope", known)
    with pytest.raises(LabError, match="does not contain submission_metadata.yml"):
        find(folder / "submission_1", "gradescope", known)


# ---- which lab it is


@pytest.mark.parametrize("name, asked, number", [
    ("2.1.py", [LAB, OTHER], "2.1"), ("work/2.1.py", [LAB, OTHER], "2.1"), (STARTER, [LAB, OTHER], "2.1"),
    (f"repo-main/{STARTER}", [OTHER], "2.1"), ("lab-01-block-allocator/starter.py", [OTHER], "2.1"),
    ("starter.py", [LAB], "2.1"), ("work/starter.py", [LAB], "2.1"), ("starter.py", [LAB, OTHER], None),
    ("2.2/starter.py", [LAB], None), ("Lab 02 final/starter.py", [LAB], None), ("2_2 mine/starter.py", [LAB], None),
     ("phase-09-x/starter.py", [LAB], None), ("lab2/starter.py", [LAB], None),
    ("Starter.py", [LAB], None), ("starter (1).py", [LAB], None), ("starter.py.txt", [LAB], None),
    ("lab-2.1.py", [LAB], None), ("2.1.ipynb", [LAB], None), ("solution.py", [LAB], None), ("2.1", [LAB], None),
])
def test_only_the_layouts_names_are_a_labs(name, asked, number):
    lab = lab_of(name, LABS, asked[0] if len(asked) == 1 else None)
    assert (lab.number if lab else None) == number


def test_what_is_not_a_labs_is_listed_and_told_to_the_student(tmp_path):
    folder = lay(tmp_path, {"ann/block_pool_final(2).py": "x", "ann/2.2.py": "other", "bob/2.1.py": "b"})
    files, left_out = found_in(folder)
    assert files["ann", "2.1"] == "There is no starter.py or 2.1.py in the submission."
    assert left_out == ["ann/block_pool_final(2).py"]
    (ann, _) = find(folder, "folder", None).submissions
    taken = take_in(ann, LABS, [LAB], PROJECT_ROOT)
    assert taken.files["2.1"].is_missing and taken.notes == (
        "block_pool_final(2).py is not named like a lab's file. It is not graded.",)


def test_two_files_for_one_lab_have_no_score_and_equal_ones_are_one(tmp_path):
    folder = lay(tmp_path, {"ann/2.1.py": "a", "ann/old/2.1.py": "b", "bob/2.1.py": "c", "bob/x/2.1.py": "c"})
    files, left_out = found_in(folder)
    assert files["ann", "2.1"] == "2 files are lab 2.1: 2.1.py, old/2.1.py. Keep one of them."
    assert files["bob", "2.1"] == "c" and left_out == ["ann/old/2.1.py"]


@pytest.mark.parametrize("content, words", [
    (b"", "2.1.py is empty."), (b" \n", "is empty"), (b"\xef\xbb\xbf", "is empty"),
    ("é".encode("latin-1"), "not a UTF-8 text"),
    ("x = 1".encode("utf-16"), "not a UTF-8 text"), (b"PK\x03\x04\x00", "not a UTF-8 text"),
    pytest.param(b"#" * 1_000_001, "is larger than 1 MB", id="too large")])
def test_a_text_that_cannot_be_graded_is_listed(tmp_path, content, words):
    files, left_out = found_in(lay(tmp_path, {"ann/2.1.py": content}))
    assert words in files["ann", "2.1"] and left_out == ["ann/2.1.py"]


def test_a_byte_order_mark_is_taken_off(tmp_path):
    assert found_in(lay(tmp_path, {"ann/2.1.py": b"\xef\xbb\xbfx = 1\n"})) == ({("ann", "2.1"): "x = 1\n"}, [])


@pytest.mark.parametrize("prefix", ["", "mini-vllm-main/"])
def test_a_copy_of_the_course_is_not_listed_file_by_file(tmp_path, prefix):
    folder = LAB.relative(LAB.folder)
    files = {f"{prefix}{STARTER}": "mine", f"{prefix}README.md": "", f"{prefix}{folder}/test_lab.py": "changed",
             f"{prefix}course/cli.py": "", f"{prefix}.git/x": "", f"{prefix}{folder}/__pycache__/x.pyc": "",
             f"{prefix}{folder}/mine.py": "", f"{prefix}phase-99/x.py": "", "elsewhere/README.md": ""}
    texts, left_out = found_in(lay(tmp_path, {f"ann/{name}": text for name, text in files.items()}), asked=[LAB, OTHER])
    unknown = [f"{prefix}{folder}/mine.py", f"{prefix}phase-99/x.py", "elsewhere/README.md"]
    assert texts["ann", "2.1"] == "mine" and left_out == sorted(f"ann/{name}" for name in unknown)
    alone = {"ann/starter.py": "mine", "ann/test_lab.py": "", "ann/hints.md": "", "ann/cli.py": ""}
    assert found_in(lay(tmp_path / "alone", alone)) == ({("ann", "2.1"): "mine"}, ["ann/cli.py"])


def test_links_and_pipes_are_not_followed(tmp_path):
    secret = lay(tmp_path, {"secret/2.1.py": "secret"}) / "secret"
    folder = lay(tmp_path / "in", {"bob/2.1.py": "b"})
    (folder / "ann").mkdir()
    (folder / "ann/2.1.py").symlink_to(secret / "2.1.py")
    (folder / "ann/work").symlink_to(secret)
    os.mkfifo(folder / "ann/2.2.py")
    (folder / "eve").symlink_to(secret)
    files, left_out = found_in(folder, asked=[LAB, OTHER])
    assert files["ann", "2.1"] == "2.1.py is a symbolic link." and "not a regular file" in files["ann", "2.2"]
    assert left_out == ["eve", "ann/work", "ann/2.1.py", "ann/2.2.py"]
    (folder / "cy.zip").symlink_to(secret / "2.1.py")
    assert found_in(folder)[0]["cy", "2.1"] == "It is a symbolic link."


# ---- archives


@pytest.mark.parametrize("name, content", [
    ("ann.zip", zipped({"work/2.1.py": "x"})), ("ann.ZIP", zipped({"2.1.py": "x"}, zipfile.ZIP_STORED)),
    ("ann.zip", zipped({"work\\2.1.py": "x", "__MACOSX/._2.1.py": "y"})), ("ann.tar", tarred({"./2.1.py": "x"})),
    ("ann.tar.gz", tarred({"work/2.1.py": "x"}, "w:gz")), ("ann.tgz", tarred({"2.1.py": "x"}, "w:gz")),
    ("ann/work.zip", zipped({"2.1.py": "x"}))], ids=lambda value: value if isinstance(value, str) else "")
def test_archives_are_folders(tmp_path, name, content):
    assert found_in(lay(tmp_path, {name: content})) == ({("ann", "2.1"): "x"}, [])


def bz2_bomb(num_bytes, claimed=1000):
    """Return an archive of 1,247 bytes with a member that claims ``claimed`` bytes and grows to ``num_bytes``."""
    data, name = bz2.compress(bytes(num_bytes)), b"2.1.py"
    size = struct.pack("<III", 0, len(data), claimed)
    local = b"PK\3\4" + struct.pack("<HHHHH", 46, 0, 12, 0, 0) + size + struct.pack("<HH", len(name), 0) + name + data
    central = (b"PK\1\2" + struct.pack("<HHHHHH", 46, 46, 0, 12, 0, 0) + size
               + struct.pack("<HHHHHII", len(name), 0, 0, 0, 0, 0, 0) + name)
    comment = bytes(1247 - len(local) - len(central) - 22)
    return local + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local),
                                                      len(comment)) + comment


@pytest.mark.parametrize("content, words", [
    (bz2_bomb(9_000_000), "is compressed by method 12; only deflate is read"),
    (zipped({"2.1.py": "x"}, zipfile.ZIP_LZMA), "is compressed by method 14")], ids=["bzip2", "lzma"])
def test_only_stored_and_deflated_members_are_read(tmp_path, content, words):
    files, left_out = found_in(lay(tmp_path, {"ann.zip": content}))
    assert words in files["ann", "2.1"] and left_out == ["ann.zip/2.1.py"]


def pax(content):
    """Return a tar with this extended header. The time to parse digits grows with the square of their number."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(content)
    return header.tobuf() + content + bytes(-len(content) % 512) + bytes(1024)


def test_the_archives_of_a_submission_together_have_one_limit_of_time(tmp_path):
    folder = lay(tmp_path, {f"ann/{i}.tar": pax(b"1" * 20_000) for i in range(8)})
    (submission,) = find(folder, "folder", None).submissions
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(Refused, match="too long to read"):
        layout.read(submission, cpu_s=1)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


def test_a_submission_that_is_refused_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "read", lambda submission: layout_refuses())
    files, left_out = found_in(lay(tmp_path, {"ann/2.1.py": "x"}))
    assert files["ann", "2.1"] == "It takes too long to read." and left_out == ["ann"]


def layout_refuses():
    raise Refused("It takes too long to read.")


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS does not limit memory")
def test_an_archive_cannot_fill_the_memory(tmp_path):
    folder = lay(tmp_path, {"ann.tgz": gzip.compress(pax(bytes(100_000_000)), 1)})
    (submission,) = find(folder, "folder", None).submissions
    with pytest.raises(Refused, match="too much memory"):
        layout.read(submission, num_bytes=100 << 20)


def test_a_damaged_archive_does_not_spoil_the_files_next_to_it(tmp_path):
    files, left_out = found_in(lay(tmp_path, {"ann/2.1.py": "x", "ann/a.tar": tarred({"2.1.py": "y"})[:700] + b"z"}))
    assert files["ann", "2.1"] == "x" and left_out == ["ann/a.tar"]


@pytest.mark.parametrize("name, content, words", [
    ("ann.zip", b"no zip", "damaged archive"), ("ann.tar", b"no tar" * 200, "damaged archive"),
    ("ann.tgz", b"\x1f\x8bno", "damaged archive"), ("ann.zip", b"", "damaged archive"),
    ("ann.zip", zipped({"2.1.py": "x" * 99})[:-30], "damaged archive"),
    ("ann.zip", zipped({f"{i}.txt": "" for i in range(reader.MAX_FILES + 1)}), "more than 5000 files"),
    ("ann.zip", zipped({"a" * 1001: ""}), "more than 1000 characters"),
    ("ann.zip", zipped({f"{i}/2.1.py": bytes(900_000) for i in range(20)}), "more than 16 MB"),
    ("/".join(["ann", *"abcdefghijklmn", "2.1.py"]), "x", "more than 12 deep")],
    ids=lambda value: value if isinstance(value, str) else "")
def test_a_submission_that_is_damaged_or_too_large_is_refused(tmp_path, name, content, words):
    with pytest.raises(Refused, match=words):
        read_one(lay(tmp_path, {name: content}))


@pytest.mark.parametrize("name", ["../2.1.py", "/2.1.py", "a/../2.1.py", "C:/2.1.py", "a\n/2.1.py", "\x1b/2.1.py"])
@pytest.mark.parametrize("pack, end", [(zipped, "zip"), (tarred, "tar")])
def test_a_path_that_is_not_safe_is_not_read(tmp_path, pack, end, name):
    (member,) = read_one(lay(tmp_path, {f"ann.{end}": pack({name: "x"})}))
    assert member.content == b"" and member.problem == "has a path that is not safe"


@pytest.mark.parametrize("fields", [
    {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, {"type": tarfile.LNKTYPE, "linkname": "x"},
    {"type": tarfile.FIFOTYPE}, {"type": tarfile.CHRTYPE}, {"type": tarfile.GNUTYPE_SPARSE}])
def test_nothing_odd_comes_out_of_a_tar(tmp_path, fields):
    try:
        members = read_one(lay(tmp_path, {"ann.tar": tarred({"2.1.py": fields})}))
    except Refused as refused:
        assert "damaged" in str(refused)
    else:
        assert [(one.content, one.problem) for one in members] == [(b"", "is a link, or not a regular file")]


def test_nothing_odd_comes_out_of_a_zip(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        link = zipfile.ZipInfo("2.1.py")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("inner.zip", zipped({"2.2.py": "x"}))
        archive.writestr("2.3.py", "x")
    content = bytearray(buffer.getvalue())
    content[content.rindex(b"PK\1\2") + 8] |= 1  # as if 2.3.py were encrypted
    members = read_one(lay(tmp_path, {"ann.zip": bytes(content)}))
    assert {one.name: one.problem for one in members} == {
        "2.1.py": "is a symbolic link", "inner.zip": "is an archive in an archive",
        "2.3.py": "is protected by a password"} and not any(one.content for one in members)


def test_a_size_that_lies_is_found(tmp_path):
    content = bytearray(zipped({"2.1.py": bytes(2_000_000)}))
    place = content.rindex(b"PK\1\2") + 24
    content[place:place + 4] = struct.pack("<I", 1000)
    with pytest.raises(Refused, match="damaged"):
        read_one(lay(tmp_path, {"ann.zip": bytes(content)}))


def test_of_many_files_some_are_listed(tmp_path):
    folder = lay(tmp_path, {"ann.zip": zipped({"2.1.py": "x", **{f"{i}.txt": "" for i in range(60)}})})
    files, left_out = found_in(folder)
    assert files["ann", "2.1"] == "x" and len(left_out) == layout.MAX_LISTED + 1 and left_out[-1] == "ann.zip"


def test_names_that_students_chose_cannot_draw_on_the_terminal(tmp_path):
    files, left_out = found_in(lay(tmp_path, {"ann/\x1b[2J\u202e.py": "x", "ann/2.1.py": "y"}))
    (ann,) = find(tmp_path, "folder", None).submissions
    (entry,) = take_in(ann, LABS, [LAB], PROJECT_ROOT).unclear
    assert left_out == ["ann/\x1b[2J\u202e.py"] and entry.why.isprintable() and platforms.shown("a" * 200)[0] == "…"


# ---- tables


@pytest.mark.parametrize("text", [
    "id,name\n7,Ann Lee\n", "\ufeffSID;First Name;Last Name\n7;Ann;Lee\n",
    "Student\tID\nPoints Possible\t\nAnn Lee\t7\n",
    "Identifier,Full name,Email address,Status\nParticipant 7,Ann Lee,a@x,Submitted\n\n",
    "Identifier,Full name\nTeilnehmer/in 7,Ann Lee\n"])
def test_a_roster_is_read_whatever_wrote_it(tmp_path, text):
    known = roster(tmp_path, text)
    assert [(one.id, one.name) for one in known.students.values()] == [("7", "Ann Lee")] and known.find("7") == "7"


def test_a_roster_knows_ids_addresses_and_platforms_numbers(tmp_path):
    known = roster(tmp_path)
    assert [known.find(key) for key in ("ANN", "ann@x.org", "7", "70", "8", "Ann Lee", "ann@y.org", "")] == [
        "ann", "ann", "ann", "ann", "bob", None, None, None]


@pytest.mark.parametrize("text, words", [
    ("name\nAnn\n", "no column contains the student's id"), ("id\n", "has no rows"),
    ("id\na/b\n", "cannot be a student's id"),
    ("id\nann\nAnn\n", "'Ann' appears twice, also for ann"), ("id\nann\nann\n", "'ann' appears twice"),
    ("id,email\nann,a@x\nbob,A@x\n", "line 3: 'A@x' appears twice, also for ann"),
    ("id,moodle\n7,8\n8,9\n", "line 3: '8' appears twice, also for 7"), ("id\nann\nb\xe9", "is not UTF-8")])
def test_a_roster_that_cannot_be_meant_is_refused(tmp_path, text, words):
    (tmp_path / "roster.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(LabError, match=re.escape(words)):
        read_roster(tmp_path / "roster.csv")


@pytest.mark.parametrize("text", ["a/b", "..", ".a", "-rf", "a\x1b", "a\u202eb", "", "a" * 81, "a.", " a"])
def test_ids_that_cannot_be_folders(text):
    assert not is_id(text)


@pytest.mark.parametrize("text, expected", [
    ("2026-03-01 10:00", "2026-03-01T10:00:00"), ("2026-03-01T10:00:05Z", "2026-03-01T10:00:05+00:00"),
    ("2026-03-01 10:00:00 UTC", "2026-03-01T10:00:00+00:00"),
    ("2026-03-01 10:00:00 -0800", "2026-03-01T10:00:00-08:00"),
    ("2026-03-01 10:00:00.123456000 +05:30", "2026-03-01T10:00:00+05:30"),
    ("Sunday, 1 March 2026, 10:00 AM", "2026-03-01T10:00:00"),
    ("Sunday, March 1, 2026, 12:30 AM", "2026-03-01T00:30:00"),
    ("Sunday, 1 March 2026, 22:00", "2026-03-01T22:00:00")])
def test_times_as_platforms_write_them(text, expected):
    assert read_time(text).isoformat() == expected


@pytest.mark.parametrize("text", ["3/1/2026 10:00", "yesterday", "", "2026-02-30 10:00", "1999-01-01 10:00",
                                  "9" * 10_000, "2026-03-01", "2026-03-01 25:00", "2026-03-01 10:00 +99:00"])
def test_what_is_no_time_is_refused_by_name(text):
    with pytest.raises(ValueError, match="is not a time from 2000 to 2100; write it like 2026-03-01 10:00"):
        read_time(text)


def test_tables_of_times(tmp_path):
    known = roster(tmp_path)
    own, moodle = tmp_path / "own.csv", tmp_path / "moodle.csv"
    moodle.write_text("Identifier,Last modified (submission)\nParticipant 7,\"Sunday, 1 March 2026, 10:00 AM\"\n"
                      "Participant 8,-\nParticipant 99,2026-03-01 10:00\n")
    own.write_text("student,lab,submitted\nann,2.1,2026-03-04 10:00\nbob,,2026-03-05 10:00\neve,2.1,2026-03-05 10:00\n"
                   "bob,9.9,2026-03-05 10:00\n")
    times = read_times([moodle, own], known, LABS)
    day = datetime(2026, 3, 4, 10)
    assert (times.of("ann", "2.1").submitted, times.of("ann", "2.1").source) == (day, "own.csv, line 2")
    assert times.of("ann", "2.2").submitted == day - timedelta(3) and not times.of("ann", "2.2").is_set
    assert times.of("bob", "2.2").submitted == day + timedelta(1) and times.of("eve", "2.1") is None
    assert times.unused == [
        "moodle.csv, line 4: no student '99' is graded here.", "own.csv, line 4: no student 'eve' is graded here.",
        "own.csv, line 5: no lab is called '9.9'."]
    with pytest.raises(LabError, match="own.csv, line 4: no student 'eve'"):
        read_times([own], known, LABS, is_whole_class=True)
    own.write_text("student,lab,submitted\nann,2.1,3/4/2026\nbob,2.1,2026-03-04 10:00\nbob,2.1,2026-03-05 10:00\n")
    with pytest.raises(LabError, match="(?s)line 2: '3/4/2026' is not a time.*line 4: an earlier line is for bob 2.1"):
        read_times([own], known, LABS)
    own.write_text("student,when\nann,2026-03-04 10:00\n")
    with pytest.raises(LabError, match="the columns are 'student', 'when'; they must include student and submitted"):
        read_times([own], known, LABS)


def test_an_archive_is_as_deep_as_a_folder_may_be(tmp_path):
    """Check that thousands of files beside hundreds of copies of the course cost nothing."""
    inner = "phase-02-paged-attention/labs/lab-01-block-allocator/starter.py"
    for depth, is_read in ((8, True), (9, False)):
        path = tmp_path / f"deep-{depth}" / "ann.zip"
        path.parent.mkdir()
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a/" * depth + inner, "x = 1")
        files, left_out = found_in(path.parent)
        assert files["ann", "2.1"] == ("x = 1" if is_read else "Its folders are more than 12 deep.")
