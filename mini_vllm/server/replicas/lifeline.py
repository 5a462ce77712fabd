"""Runs a command until standard input ends: a program that knows nothing of the front then stops with it.

It is run as a file, and imports nothing of the project, so it starts at once.
"""

import os
import subprocess
import sys
import threading

#: How long the command may take to stop.
TERMINATE_S = 2.0


def main() -> int:
    """Run the command in the arguments, and return its exit status. Its output goes to standard error."""
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=2)
    threading.Thread(target=_stop_with_the_front, args=(process,), daemon=True).start()
    return process.wait()


def _stop_with_the_front(process: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1):  # not sys.stdin: Python would wait for its lock when it ends
        pass
    process.terminate()
    try:
        process.wait(TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
