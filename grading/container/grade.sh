#!/usr/bin/env bash
# Grade in the container: grade.sh SUBMISSIONS OUT [options of `course grade`].
set -euo pipefail

[ $# -ge 2 ] || { echo "usage: grade.sh SUBMISSIONS OUT [options of course grade]" >&2; exit 2; }
[ -d "$1" ] || { echo "grade.sh: there is no folder $1" >&2; exit 2; }
mkdir -p "$2"
SUBMISSIONS="$(cd "$1" && pwd)" OUT="$(cd "$2" && pwd)"; shift 2
ENGINE="${ENGINE:-$(command -v podman || command -v docker || true)}"
[ -n "$ENGINE" ] || { echo "grade.sh: neither podman nor docker is installed" >&2; exit 2; }

# /out must be writable for who runs inside: with podman that is you under another number, with docker your number.
if [ "$(basename "$ENGINE")" = podman ]; then who=(--userns=keep-id:uid=10001,gid=10001); else who=(--user "$(id -u):$(id -g)"); fi
exec "$ENGINE" run --rm "${who[@]}" --network=none --read-only --tmpfs /tmp:rw,nosuid,nodev,size=512m,mode=1777 \
    --cap-drop=ALL --security-opt=no-new-privileges --pids-limit="${PIDS:-256}" --memory="${MEMORY:-2g}" \
    --volume "$SUBMISSIONS:/submissions:ro" --volume "$OUT:/out" "${IMAGE:-mini-vllm-grader}" "$@"
