#!/usr/bin/env bash
# Grade one repository: grade.sh SUBMISSION OUT LAB [LAB …]. The student's page becomes the summary of the run.
# It succeeds when the grading did, whatever the score; points.py tells that.
set -euo pipefail

[ $# -ge 3 ] || { echo "usage: grade.sh SUBMISSION OUT LAB [LAB …]" >&2; exit 2; }
SUBMISSION="$1" OUT="$2"; shift 2
[ -d "$SUBMISSION" ] || { echo "grade.sh: there is no folder $SUBMISSION" >&2; exit 2; }

WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT
mkdir -p "$WORK/submissions"
cp -R -P "$SUBMISSION" "$WORK/submissions/student"  # -P: links stay links
rm -rf "$WORK/submissions/student/.git"

labs=()
for lab in "$@"; do labs+=(--lab "$lab"); done
status=0
course grade "$WORK/submissions" --out "$OUT" --sandbox "${SANDBOX:-auto}" "${labs[@]}" || status=$?

if [ -f "$OUT/students/student/feedback.md" ]; then
    cat "$OUT/students/student/feedback.md" >> "${GITHUB_STEP_SUMMARY:-/dev/stdout}"
fi
[ "$status" -le 1 ] || exit "$status"  # 1: something must be graded again, and its points are empty
