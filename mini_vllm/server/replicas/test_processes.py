"""``mini-vllm serve --replicas`` as processes: a replica is killed, comes back, and stops with the front."""

import os
import pickle
import signal
import subprocess
import threading
import time
import urllib.request
from dataclasses import replace

import pytest

from mini_vllm.cli import main
from mini_vllm.cli.serve import check_memory
from mini_vllm.engine_config import EngineParts
from mini_vllm.server.conftest import settings_for
from mini_vllm.server.replicas.serving import make_processes, make_router
from mini_vllm.server.test_serving import ask, body, last_event, start

LIMIT_S = 60


def until(is_true, what):
    """Wait for ``is_true``. It is polled, because a process cannot tell the test."""
    end_s = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < end_s, f"not within {LIMIT_S} s: {what}"
        threading.Event().wait(0.02)


def children(pid):
    found = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in found.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def read(address, path):
    with urllib.request.urlopen(address + path, timeout=LIMIT_S) as answer:
        return answer.read().decode()


def in_background(server):
    """Read what the server prints, so that it never waits for the pipe to be read."""
    lines = []
    threading.Thread(target=lambda: lines.extend(server.stderr), daemon=True).start()
    return lines


def read_event(stream):
    """Read the first event of a stream: a line, and the empty line after it."""
    assert stream.readline().startswith(b"data: ") and stream.readline() == b"\n"


@pytest.fixture
def fleet(writer):
    server, address, line = start(writer, "--replicas", "2", "--num-blocks", "400")
    assert line.endswith("with 2 replicas on this machine and 0 other workers. Ctrl-C stops.\n"), line
    lines, workers = in_background(server), children(server.pid)
    assert len(workers) == 2
    try:
        until(lambda: read(address, "/health").count("up") == 2, "two replicas are up")
        yield server, address, workers, lines
    finally:
        server.kill()
        server.wait()
        until(lambda: not any(map(is_alive, workers)), "the replicas end after the front was killed")


def test_every_client_gets_an_answer_or_an_error_when_a_replica_is_killed_and_it_comes_back(fleet, writer):
    server, address, workers, lines = fleet
    with ask(address, **body(writer, 2000)) as first, ask(address, **{**body(writer, 2000), "prompt": "b"}) as second:
        streams = {stream.headers["x-mini-vllm-replica"]: stream for stream in (first, second)}
        assert set(streams) == {"replica-0", "replica-1"}, "two idle replicas share two requests"
        for stream in streams.values():
            read_event(stream)
        os.kill(workers[0], signal.SIGKILL)
        (cut_off,) = [name for name, stream in streams.items()
                      if last_event(stream.read()).get("error", {}).get("code") == "replica_failed"]
    for number in range(4):
        with ask(address, model=writer.name, prompt=f"text {number}", max_tokens=2) as answer:
            assert answer.status == 200
    until(lambda: f'"{cut_off}":"up"' in read(address, "/health"), "the killed replica comes back")
    new = [pid for pid in children(server.pid) if pid not in workers]
    workers += new
    assert len(new) == 1 and any(f"{cut_off} is down" in line for line in lines)
    page = read(address, "/metrics")
    assert f'mini_vllm_replica_up{{replica="{cut_off}"}} 1.0' in page
    assert f'mini_vllm_requests_total{{model="{writer.name}",outcome="answered",replica="replica-' in page


def test_sigterm_finishes_what_has_begun_and_leaves_no_process(fleet, writer):
    server, address, workers, lines = fleet
    with ask(address, **body(writer, 300)) as stream:
        read_event(stream)
        server.send_signal(signal.SIGTERM)
        assert last_event(stream.read())["choices"][0]["finish_reason"] == "length"
    assert server.wait(LIMIT_S) in (0, -signal.SIGTERM)
    assert not any(map(is_alive, workers)) and "Traceback" not in "".join(lines)


def test_a_replica_that_cannot_start_is_an_error_that_names_it(writer, tmp_path, capfd):
    (tmp_path / "parts.py").write_text("raise ValueError('not today')")
    assert main(["serve", str(writer), "--port", "0", "--replicas", "1", "--parts", str(tmp_path / "parts.py")]) == 2
    errors = capfd.readouterr().err
    assert "not today" in errors and "replica-0 did not start" in errors


@pytest.mark.parametrize("options, message", [
    (["--replicas", "-1"], "--replicas is -1, must be a whole number from 0 to 64"),
    (["--replicas", "65"], "--replicas is 65, must be a whole number from 0 to 64"),
    (["--worker", "10.0.0.5"], "worker is '10.0.0.5', must be a URL such as http://10.0.0.5:8000"),
    (["--replicas", "2", "--kv-memory", "9000000GB"], "of memory are available; use fewer replicas"),
    (["--replicas", "2", "no-such-model"], "no-such-model"),
])
def test_what_cannot_be_served_is_refused_before_a_process_starts(options, message, capsys, monkeypatch):
    monkeypatch.setattr("mini_vllm.server.replicas.processes.ReplicaProcess.start", None)
    assert main(["serve", "--port", "0", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_memory_of_all_replicas_is_counted(writer, monkeypatch):
    settings = settings_for(writer, sizes={"num_blocks": None, "kv_memory": "100MB"})
    monkeypatch.setattr("mini_vllm.benchmark.machine.memory_bytes", lambda: (10**9, 350 * 10**6))
    check_memory(settings, 3)
    with pytest.raises(ValueError, match="--replicas is 4: weights and KV caches take 0.4 GB, and 0.[34] GB"):
        check_memory(settings, 4)
    check_memory(replace(settings, memory="300MB"), 4)


def test_the_router_remembers_about_as_much_as_a_replica_caches():
    assert make_router(settings_for("m", sizes={"num_blocks": 61, "block_size": 32}).engine).max_blocks == 122
    assert make_router(settings_for("m", sizes={"num_blocks": 2, "block_size": 1}).engine).max_blocks == 1
    assert make_router(settings_for("m", sizes={"num_blocks": None}).engine).max_blocks == 2**14


def test_replicas_share_cores_and_memory_and_leave_keys_to_the_file(writer, keys_file, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "5")
    settings = settings_for(writer, memory="900MB", keys_file=keys_file, host="0.0.0.0")
    processes = make_processes(settings, 3, EngineParts)
    own, make_parts = pickle.loads(processes[0]._orders)
    assert (own.host, own.port, own.memory, own.is_replica, own.keys_file, make_parts) == (
        "127.0.0.1", 0, 300 * 10**6, True, keys_file, EngineParts)
    environment = processes[0]._environment
    assert (environment["OMP_NUM_THREADS"], environment["OPENBLAS_NUM_THREADS"]) == ("2", "5")
    assert [process.name for process in processes] == ["replica-0", "replica-1", "replica-2"]
