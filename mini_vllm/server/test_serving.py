"""``mini-vllm serve`` as a process: its output, and how it stops."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from starlette.responses import StreamingResponse

from mini_vllm.checks import install_line
from mini_vllm.cli import main
from mini_vllm.server import serving
from mini_vllm.server.conftest import Client, running, settings_for
from mini_vllm.server.shutdown import DrainGate, Farewell


def start(model, *options):
    """Start the server, and return it with its address once it listens."""
    command = [sys.executable, "-m", "mini_vllm.cli", "serve", "--model", str(model), "--port", "0", *options]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    line = next(line for line in server.stderr if line.startswith("Serving "))  # a router may print lines before it
    return server, re.search(r"http://\S+(?=/v1)", line)[0], line


def ask(address, **body):
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


def body(writer, max_tokens):
    return {"model": writer.name, "prompt": "a", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}


def last_event(data):
    *_, last, end, rest = data.split(b"\n\n")
    assert (end, rest) == (b"data: [DONE]", b"")
    return json.loads(last.removeprefix(b"data: "))


def test_sigterm_ends_the_process_when_the_last_answer_is_out(writer):
    server, address, line = start(writer)
    assert line == f"Serving {writer.name} at {address}/v1, each loaded on first use.\n"
    assert server.stderr.readline() == f"Open {address}/ to see the engine at work. Ctrl-C stops.\n"
    try:
        with ask(address, **body(writer, 300)) as stream:
            stream.readline()
            server.send_signal(signal.SIGTERM)
            assert last_event(stream.read())["choices"][0]["finish_reason"] == "length"
        assert server.wait(30) in (0, -signal.SIGTERM)
        assert "Traceback" not in server.stderr.read()
    finally:
        server.kill()


def test_a_server_that_stops_finishes_what_it_began(writer):
    with running(settings_for(writer)) as server:
        with ask(server.url, **body(writer, 300)) as stream:
            stream.readline()
            server.stop()
            assert last_event(stream.read())["choices"][0]["finish_reason"] == "length"
        server.thread.join(30)
        assert not server.thread.is_alive() and not server.shelf.loaded()


def test_before_it_serves_the_garbage_collector_is_told_what_stays(writer, monkeypatch):
    """Check that objects that exist before serving are exempt: scanning them would stall a stream now and then."""
    told = []
    monkeypatch.setattr("gc.freeze", lambda: told.append("alone"))
    monkeypatch.setattr(serving.DrainingServer, "run", lambda self, sockets: told.append("run"))
    serving.serve(settings_for(writer), lambda address: told.append("listens"))
    assert told == ["alone", "listens", "run"]


def test_ctrl_c_as_soon_as_it_has_said_where_it_is_ends_it_in_peace(writer):
    def stop(address):
        raise KeyboardInterrupt

    assert serving.serve(settings_for(writer), stop) is None


def call(url, body, path="/v1/completions", num_bytes_kept_back=0):
    """Send a request, except for the last ``num_bytes_kept_back`` bytes, and return the connection."""
    data = json.dumps(body).encode()
    head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n")
    connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=30)
    connection.sendall(head.encode() + data[:len(data) - num_bytes_kept_back])
    return connection.makefile("rb")


def test_who_takes_too_long_is_told_and_cut_off_and_the_log_has_one_line_of_it(writer, caplog, capsys):
    long = {**body(writer, 500), "n": 16}
    with running(settings_for(writer, drain_s=0)) as server:
        stream = call(server.url, long)
        while not stream.readline().startswith(b"data: "):
            pass
        whole, upload = call(server.url, {**long, "stream": False}), call(server.url, long, num_bytes_kept_back=5)
        while server.shelf.num_in_flight(writer.name) < 2 or len(server.server.server_state.tasks) < 3:
            pass
        server.stop()
        rest, *answers = stream.read(), whole.read(), upload.read()
        server.thread.join(30)
        assert not server.thread.is_alive()
    assert b'"code":"stopping"}}\n\n' in rest and rest.endswith(b"0\r\n\r\n"), "the stream comes to its end"
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 5" in answer and b'"code":"stopping"' in answer
    assert [line for line in caplog.messages if "cut off" in line] == [
        "3 requests were cut off: not answered within 0 s (--drain)"]
    assert capsys.readouterr().err == "", "uvicorn has nothing to say of it"


def test_a_second_ctrl_c_does_not_wait_and_leaves_no_traceback(writer, caplog, capsys):
    with running(settings_for(writer)) as server:
        stream = call(server.url, {**body(writer, 500), "n": 16})
        while not stream.readline().startswith(b"data: "):
            pass
        for _ in range(2):
            server.loop.call_soon_threadsafe(server.server.handle_exit, signal.SIGINT, None)
        assert b'"code":"stopping"' in stream.read()
        server.thread.join(10)
        assert not server.thread.is_alive() and not server.shelf.loaded()
    assert "1 request was cut off: the server was told to stop at once" in caplog.messages
    assert capsys.readouterr().err == ""


def test_who_does_not_read_keeps_no_server_from_stopping(writer, monkeypatch, capsys):
    async def flood(request):
        async def chunks():
            while True:
                yield bytes(2**20)
        return StreamingResponse(chunks(), media_type="text/event-stream")

    with running(settings_for(writer, drain_s=0)) as server:
        monkeypatch.setattr(serving, "FAREWELL_S", 0.1)
        server.server.config.app.router.add_route("/flood", flood, methods=["POST"])
        stream = call(server.url, {}, "/flood")
        assert stream.readline().startswith(b"HTTP/1.1 200")
        server.stop()
        server.thread.join(10)
        assert not server.thread.is_alive()
    assert capsys.readouterr().err == ""


def test_who_comes_meanwhile_is_sent_away_and_who_only_listens_hears_the_end(writer):
    async def main():
        draining = asyncio.Event()

        async def app(scope, receive, send):  # an endless stream
            while (await receive())["type"] != "http.disconnect":
                pass
            await send({"type": "http.response.start", "status": 200, "headers": []})

        gate = DrainGate(app, draining)
        listener, late = Client("/live/events", b"", method="GET"), Client("/v1/models", b"", method="GET")
        task = asyncio.create_task(listener.ask(gate))
        await asyncio.sleep(0)
        draining.set()
        await task
        await late.ask(gate)
        return listener, late

    listener, late = asyncio.run(main())
    assert listener.status == 200 and listener.has_ended
    assert late.status == 503 and late.headers[b"retry-after"] == b"5" and late.json()["error"]["code"] == "stopping"


@pytest.mark.parametrize("is_draining", [True, False])
def test_only_a_server_that_stops_says_farewell(is_draining):
    async def main():
        draining, is_in = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            is_in.set()
            await asyncio.Event().wait()

        client = Client("/v1/completions", {})
        task = asyncio.create_task(client.ask(Farewell(app, draining)))
        await is_in.wait()
        if is_draining:
            draining.set()
        task.cancel()
        return await task

    if is_draining:
        client = asyncio.run(main())
        assert client.status == 503 and client.json()["error"]["code"] == "stopping"
    else:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main())


# ---- the output of the command


@pytest.mark.parametrize("options, message", [
    (["--host", "0.0.0.0"], "host is '0.0.0.0', which other machines can reach"),
    (["--keys", "none-such.toml"], "none-such.toml: No such file or directory"),
    (["--model", "none-such"], "there is no model 'none-such'"),
    (["tiny-tales", "none-such"], "there is no model 'none-such'"),
    (["--memory", "much"], "memory is 'much', must be a number of bytes, or a size such as '4GB'"),
    (["--port", "70000"], "port is 70000, must be a whole number from 0 to 65535"),
    (["--max-waiting", "-1"], "max_waiting is -1, must be a whole number, at least 0"),
    (["--drain", "-1"], "drain_s is -1.0, must be a finite number, at least 0"),
    (["--kv-memory", "x"], "kv_memory is 'x'"),
    (["--host", "192.0.2.1", "--keys", "{keys}"], "cannot listen at 192.0.2.1 port 8000: "),
])
def test_what_cannot_be_served_is_told_in_one_line(options, message, keys_file, capsys):
    assert main(["serve", *(option.format(keys=keys_file) for option in options)]) == 2
    told = capsys.readouterr().err
    assert message in told and told.startswith("mini-vllm: ") and told.count("\n") == 1


def test_a_port_that_is_taken_is_told(capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert f"cannot listen at 127.0.0.1 port {port}: Address already in use; another --port" in capsys.readouterr().err


def test_the_rest_of_the_package_does_without_the_servers_packages():
    code = ("import sys, mini_vllm, mini_vllm.cli, mini_vllm.cli.options, mini_vllm.cli.generate\n"
            "print({'fastapi', 'uvicorn', 'pydantic', 'prometheus_client', 'starlette'} & set(sys.modules))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_packages_that_are_missing_are_named(monkeypatch, capsys):
    import importlib.util
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name))
    assert main(["serve"]) == 2
    assert f"the server needs uvicorn: {install_line('serve')}\n" in capsys.readouterr().err
