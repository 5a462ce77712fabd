#!/usr/bin/env bash
# Runs once, as root, when Gradescope builds the image: Python, the course, and a user who may do nothing.
set -euo pipefail

ROOT="${AUTOGRADER_ROOT:-/autograder}"
GRADER="${AUTOGRADER_USER:-grader}"

apt-get update -qq
apt-get install -qq -y --no-install-recommends python3 python3-venv bubblewrap
id -u "$GRADER" >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin "$GRADER"

python3 -m venv "$ROOT/venv"
"$ROOT/venv/bin/python" -m pip install --quiet --disable-pip-version-check -e "$ROOT/source/course[course]"

# What decides belongs to root, and nobody else may write it. The results' folder is not even readable.
mkdir -p "$ROOT/results"
chown -R -h root:root "$ROOT/source" "$ROOT/venv" "$ROOT/results"
chmod -R go-w "$ROOT/source" "$ROOT/venv"
chmod 700 "$ROOT/results"
