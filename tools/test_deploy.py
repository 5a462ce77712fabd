"""The files in deploy/ agree with the server and with each other, where no schema can tell."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from mini_vllm.cli import make_parser
from mini_vllm.cli.arguments import parse_arguments
from mini_vllm.server.serving import FAREWELL_S
from mini_vllm.server.settings import is_loopback

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = [each for name in ("servers.yaml", "front.yaml")
              for each in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())]
PODS = {each["metadata"]["name"]: each for each in KUBERNETES if "template" in each["spec"]}
SERVERS, FRONT = PODS["mini-vllm-server"], PODS["mini-vllm-front"]
SERVICES = {each["metadata"]["name"]: each["spec"] for each in KUBERNETES if each["kind"] == "Service"}
NAMESPACE = "some-namespace"


def instruction(name):
    """Return what the last instruction of this name in the Dockerfile says."""
    return re.findall(rf"^{name}\s+(.*)$", DOCKERFILE, re.M)[-1]


def served(*arguments):
    """Parse what a container is told, as its process does. The arguments replace the image's CMD."""
    program, *command = json.loads(instruction("ENTRYPOINT")) + list(arguments or json.loads(instruction("CMD")))
    assert program == "mini-vllm"
    return parse_arguments(make_parser(), command)


def container_of(pods):
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    return container


def pod_args(pods, number=0):
    """Return the arguments of a pod, with its variables replaced."""
    container = container_of(pods)
    values = {"metadata.name": f"{pods['metadata']['name']}-{number}", "metadata.namespace": NAMESPACE}
    known = {each["name"]: values[each["valueFrom"]["fieldRef"]["fieldPath"]] for each in container["env"]
             if "valueFrom" in each}
    return [re.sub(r"\$\((\w+)\)", lambda found: known[found[1]], each) for each in container["args"]]


COMMANDS = {"image": served(), **{name: served(*each["command"]) for name, each in COMPOSE["services"].items()},
            "mini-vllm-front": served(*pod_args(FRONT)),
            **{f"mini-vllm-server-{number}": served(*pod_args(SERVERS, number))
               for number in range(SERVERS["spec"]["replicas"])}}
PORT = COMMANDS["image"].port


def test_every_container_serves_with_keys_on_the_same_port_and_the_commands_of_the_page_exist():
    for name, arguments in COMMANDS.items():
        assert not is_loopback(arguments.host), f"{name} listens on loopback and cannot be reached"
        assert arguments.keys is not None, f"without keys, {name} refuses to listen there"
        assert arguments.port == PORT and not arguments.replicas
    lines = re.findall(r"^(?:\$ )?mini-vllm (.*?)(?: +#.*)?$", (DEPLOY / "README.md").read_text(), re.M)
    assert lines
    for line in lines:
        parse_arguments(make_parser(), shlex.split(line))


def test_the_image_is_checked_where_it_listens_and_what_it_copies_is_sent_to_the_builder():
    assert int(instruction("EXPOSE")) == PORT
    assert f"'127.0.0.1', {PORT}," in instruction("HEALTHCHECK") and "'/health'" in instruction("HEALTHCHECK")
    compile(json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])[2], "the health check", "exec")
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [name for line in re.findall(r"^COPY\s+(.*)$", DOCKERFILE, re.M) for name in line.split()[:-1]]
    assert {"pyproject.toml", "mini_vllm"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists() or f"!{name}" not in ignored] == []


def test_the_keys_are_where_the_server_reads_them_and_git_ignores_them():
    for path in ("deploy/keys.toml", "deploy/kubernetes/keys.toml"):
        assert subprocess.run(["git", "check-ignore", "--quiet", path], cwd=ROOT).returncode == 0
    folder, name = COMMANDS["image"].keys.parent, COMMANDS["image"].keys.name
    for service in COMPOSE["services"].values():
        assert folder == Path("/run/secrets") and [each["target"] for each in service["secrets"]] == [name]
    made = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["secretGenerator"]
    for pods in PODS.values():
        mounts = {each["name"]: each["mountPath"] for each in container_of(pods)["volumeMounts"]}
        volumes = {each["name"]: each for each in pods["spec"]["template"]["spec"]["volumes"]}
        assert mounts["keys"] == str(folder) and mounts.keys() == volumes.keys()
        assert [(each["name"], each["files"]) for each in made] == [(volumes["keys"]["secret"]["secretName"], [name])]


def test_a_front_calls_every_server_by_a_name_that_it_allows():
    dns = {f"mini-vllm-server-{number}.{SERVERS['spec']['serviceName']}": f"mini-vllm-server-{number}"
           for number in range(SERVERS["spec"]["replicas"])}
    assert SERVERS["spec"]["serviceName"] in SERVICES
    for front, servers in (("front", {name: name for name in COMPOSE["services"] if name != "front"}),
                           ("mini-vllm-front", dns)):
        urls = [urlsplit(url) for url in COMMANDS[front].worker]
        assert sorted(url.hostname for url in urls) == sorted(servers), f"{front} does not call each server once"
        for url in urls:
            assert url.port == PORT
            assert url.hostname in COMMANDS[servers[url.hostname]].allow_host, f"{url.hostname} is not allowed there"


def test_no_server_is_killed_while_it_drains():
    """Compare with uvicorn's own limit, the last one: it is five farewells after the server's."""
    needed = {name: arguments.drain + 5 * FAREWELL_S for name, arguments in COMMANDS.items()}
    for name, service in COMPOSE["services"].items():
        assert int(service["stop_grace_period"].removesuffix("s")) > needed[name], name
    for name, pods in PODS.items():
        hook = container_of(pods).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        given = pods["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert given > needed.get(name, needed["mini-vllm-server-0"]) + hook, name


def test_the_user_of_the_image_is_the_one_of_the_pods():
    user = int(instruction("USER").partition(":")[0])
    assert user > 0 and f"--uid {user} " in DOCKERFILE
    for pods in PODS.values():
        context = pods["spec"]["template"]["spec"]["securityContext"]
        assert context["runAsNonRoot"] and {context[name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {user}
