#!/usr/bin/env bash
# Pack an autograder for Gradescope from what is committed:
#
#     grading/gradescope/make_zip.sh build/gradescope.zip 2.1 2.2            # one assignment with two labs
#     HIDDEN=../my-hidden-tests grading/gradescope/make_zip.sh build/gradescope.zip 2.1
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: make_zip.sh FILE.zip LAB [LAB …]   as in: make_zip.sh build/gradescope.zip 2.1" >&2; exit 2; }
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
REPO="$(cd "$HERE/../.." && pwd)"
ZIP="$1"; shift

for lab in "$@"; do
    [[ "$lab" =~ ^[0-9]+\.[0-9]+$ ]] || { echo "make_zip.sh: '$lab' is not a lab's number, such as 2.1" >&2; exit 2; }
    folders=("$REPO"/phase-"$(printf %02d "${lab%.*}")"-*/labs/lab-"$(printf %02d "${lab#*.}")"-*)
    [ -d "${folders[0]}" ] || { echo "make_zip.sh: there is no lab $lab" >&2; exit 2; }
done
if [ -n "${HIDDEN:-}" ] && [ ! -d "$HIDDEN" ]; then
    echo "make_zip.sh: HIDDEN is '$HIDDEN', which is not a folder" >&2; exit 2
fi

STAGE="$(mktemp -d)"
trap 'rm -rf "$STAGE"' EXIT
mkdir -p "$STAGE/course"
phases="$(cd "$REPO" && git ls-tree --name-only HEAD | grep '^phase-')"
# shellcheck disable=SC2086  # one word a phase
git -C "$REPO" archive HEAD course mini_vllm $phases pyproject.toml setup.py README.md LICENSE | tar -x -C "$STAGE/course"
git -C "$REPO" rev-parse HEAD > "$STAGE/course/COMMIT"
cp "$HERE/setup.sh" "$HERE/run_autograder" "$HERE/autograder.py" "$STAGE/"
printf '%s\n' "$@" > "$STAGE/labs"
[ -z "${HIDDEN:-}" ] || cp -R "$HIDDEN" "$STAGE/hidden"
chmod 755 "$STAGE/setup.sh" "$STAGE/run_autograder"

mkdir -p "$(dirname "$ZIP")"
python3 -c 'import shutil, sys; shutil.make_archive(sys.argv[1], "zip", sys.argv[2])' "${ZIP%.zip}" "$STAGE"
echo "${ZIP%.zip}.zip: labs $*, commit $(cut -c1-12 "$STAGE/course/COMMIT"). Upload it under Configure Autograder."
