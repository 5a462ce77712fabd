"""``mini-vllm serve --router``: a made-up router, an executable file, in place of sglang-router and vllm-router.

``make routers`` also runs the test of the processes with the real ones.
"""

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from mini_vllm.cli import main
from mini_vllm.server.conftest import Client
from mini_vllm.server.replicas import production
from mini_vllm.server.replicas.exchange import Address
from mini_vllm.server.replicas.fleet import Fleet
from mini_vllm.server.replicas.front import make_front
from mini_vllm.server.replicas.production import RouterFleet, RouterProcess, find_router, free_ports
from mini_vllm.server.replicas.test_processes import children, in_background, is_alive, read, until
from mini_vllm.server.replicas.test_proxy import CHUNKED, EVENTS, Worker, ask, chunk, die, whole
from mini_vllm.server.settings import ServerSettings
from mini_vllm.server.test_serving import start

#: The real routers to test, "sglang" or "vllm". Their executables must be on the PATH.
REAL = os.environ.get("MINI_VLLM_TEST_ROUTERS", "").split()

#: It passes requests with their key to the first server that accepts the connection.
ROUTER = '''#!{python}
import sys, urllib.error, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(200 if self.path == "/readiness" else 418, b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {{name: self.headers[name] for name in ("content-type", "authorization")}}
        for url in sys.argv[sys.argv.index("--worker-urls") + 1:]:
            try:
                with urllib.request.urlopen(urllib.request.Request(url + self.path, body, headers)) as answer:
                    return self.answer(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                return self.answer(error.code, error.read())
            except OSError:
                pass
        self.answer(503, b"no server")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
'''


def executable(folder, text, name="vllm-router"):
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture(params=["made-up", *REAL])
def router(request, tmp_path):
    if request.param == "made-up":
        return "vllm", executable(tmp_path, ROUTER.format(python=sys.executable))
    return request.param, Path(find_router(request.param)[0])


def test_a_router_and_a_replica_come_back_when_they_are_killed_and_keys_hold(router, writer, keys_file):
    kind, path = router
    server, address, line = start(writer, "--replicas", "1", "--num-blocks", "400", "--router", kind,
                                  "--router-path", str(path), "--keys", str(keys_file))
    seen = set(family(server.pid))
    try:
        assert line.endswith(f"1 replicas on this machine and 0 other workers behind {path}. Ctrl-C stops.\n"), line
        lines = in_background(server)
        (replica,) = [pid for pid in children(server.pid) if not children(pid)]
        (lifeline,) = [pid for pid in children(server.pid) if children(pid)]
        until(lambda: '"replica-0":"up"},"router":"up"' in read(address, "/health"), "both are up")

        body = {"model": writer.name, "prompt": "a", "max_tokens": 2}
        assert status_of(address, body, "wrong-key-wrong-key") == 401
        assert status_of(address, {**body, "priority": "high"}, "bert-has-a-secret") == 403, "replicas see the key"
        assert status_of(address, {**body, "n": 4}, "bert-has-a-secret") == 200
        assert status_of(address, body, "bert-has-a-secret") == 429, "the front counts the rate"

        for pid in (replica, lifeline):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, seen)), "the router ends with its lifeline")
        until(lambda: status_of(address, body, "carla-has-a-secret") == 200, "both are back, the replica at its port")
        assert "Traceback" not in "".join(lines)
    finally:
        seen.update(family(server.pid))
        server.kill()
        server.wait()
        until(lambda: not any(map(is_alive, seen)), "all processes end after the front was killed")


def family(pid):
    return [each for child in children(pid) for each in (child, *family(child))]


def status_of(address, body, key):
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


# ---- the front, with a made-up router in the same loop


def behind_a_router(main):
    """Call ``main`` with a front, its two fleets, and their only members."""
    async def run():
        router, replica = await Worker("router").start(), await Worker("replica").start()
        fleet = RouterFleet({"router": Address("127.0.0.1", router.port)})
        replicas = Fleet({"replica": Address("127.0.0.1", replica.port)})
        app = make_front(ServerSettings(), fleet, replicas=replicas)
        for each in (fleet, replicas):
            for member in each.replicas.values():
                await each.check(member)
        try:
            await main(app, fleet, replicas, router, replica)
        finally:
            router.server.close()
            replica.server.close()
    asyncio.run(asyncio.wait_for(run(), 60))


def test_requests_go_to_the_router_and_all_other_paths_to_a_replica():
    async def main(app, fleet, replicas, router, replica):
        assert (await ask(app)).json() == {"from": "router"}
        assert (await Client("/workers", b"", method="GET").ask(app)).json() == {"from": "replica"}
        health = await Client("/health", b"", method="GET").ask(app)
        assert health.json() == {"status": "ok", "replicas": {"replica": "up"}, "router": "up"}

    behind_a_router(main)


def test_metrics_come_from_the_replicas_and_the_router_is_counted_under_its_name():
    async def main(app, fleet, replicas, router, replica):
        await ask(app)

        async def answer(writer):
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n# TYPE hits gauge\nhits 3.0\n\n')

        replica.answer = answer
        page = (await Client("/metrics", b"", method="GET").ask(app)).data.decode()
        for sample in ('hits{replica="replica"} 3.0', 'replica_up{replica="replica"} 1.0',
                       'replica_up{replica="router"} 1.0', 'replica_routed_requests_total{replica="router"} 1.0'):
            assert sample in page
        assert 'routed_requests_total{replica="replica"}' not in page, "the front does not know"

    behind_a_router(main)


@pytest.mark.parametrize("which", ["router", "replica"])
def test_health_is_bad_if_the_router_or_all_replicas_are_down(which):
    async def main(app, fleet, replicas, router, replica):
        {"router": router, "replica": replica}[which].health = whole({}, b"503 Service Unavailable")
        await fleet.check(fleet.replicas["router"])
        if which == "router":
            assert (await ask(app)).status == 503 and router.num_asked == 0
        else:
            await replicas.check(replicas.replicas["replica"])
        assert (await Client("/health", b"", method="GET").ask(app)).status == 503

    behind_a_router(main)


def test_an_answer_that_breaks_off_behind_the_router_takes_nothing_from_other_requests():
    async def main(app, fleet, replicas, router, replica):
        async def answer(writer):
            if router.num_asked > 1:
                writer.write(CHUNKED + chunk(EVENTS[0]))
                await writer.drain()
            die(writer)

        router.answer = answer
        client = await Client("/v1/completions", {"model": "m", "prompt": "x", "stream": True}).ask(app)
        first, last = client.events()
        assert (first, last["error"]["code"]) == ({"n": 1}, "replica_failed"), "sent again, then it had begun"
        assert router.num_asked == 2 and fleet.replicas["router"].is_up

    behind_a_router(main)


# ---- the process


@pytest.mark.parametrize("code, message", [
    ("raise SystemExit(3)", "ended with status 3 before it was ready; its messages are above"),
    ("import signal; signal.pause()", "was not ready within 0.2 s; is a replica up?")])
def test_a_router_that_does_not_get_ready_is_an_error_and_leaves_no_process(code, message, monkeypatch):
    monkeypatch.setattr(production, "START_S", 0.2 if "pause" in code else 60)

    async def main():
        process = RouterProcess([sys.executable, "-c", code], [])
        with pytest.raises(ValueError, match=message):
            await process.start()
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)

    asyncio.run(main())


def test_ports_are_free_and_differ():
    assert len(set(free_ports(50))) == 50


def test_the_executable_is_looked_for_next_to_python_and_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "here" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "there"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"--router sglang needs sglang-router, .*\[cluster\].*--router-path"):
        find_router("sglang")
    for folder in ("there", "here"):
        (tmp_path / folder).mkdir()
        found = executable(tmp_path / folder, "", "sglang-router")
        assert find_router("sglang") == [str(found), "launch"]
    given = executable(tmp_path, "", "mine")
    assert find_router("vllm", given) == [str(given)]
    with pytest.raises(ValueError, match="--router-path is 'missing', must be an executable file"):
        find_router("vllm", Path("missing"))


@pytest.mark.parametrize("options, message", [
    (["--router", "sglang"], "--router sglang needs --replicas or --worker"),
    (["--replicas", "1", "--router-path", "x"], "--router-path is 'x', and --router is own"),
    (["--replicas", "1", "--router", "vllm", "--router-path", "x"], "--router-path is 'x', must be an executable"),
])
def test_options_that_do_not_fit_are_refused_before_a_process_starts(options, message, capsys, monkeypatch):
    monkeypatch.setattr("mini_vllm.server.replicas.processes.ReplicaProcess.start", None)
    assert main(["serve", "--port", "0", *options]) == 2
    assert message in capsys.readouterr().err
