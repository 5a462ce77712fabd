#!/usr/bin/env bash
# Build the image from what is committed: build.sh [NAME], with podman or, if there is none, docker.
set -euo pipefail

REPO="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
ENGINE="${ENGINE:-$(command -v podman || command -v docker || true)}"
[ -n "$ENGINE" ] || { echo "build.sh: neither podman nor docker is installed" >&2; exit 2; }
git -C "$REPO" archive HEAD | "$ENGINE" build --tag "${1:-mini-vllm-grader}" -f grading/container/Containerfile -
