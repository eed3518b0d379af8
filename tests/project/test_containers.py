"""docker/ and deploy/: what they say is true of fedsz, and their scripts run."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fedsz.training.options import CLIENT, SERVER, options_of
from tests.conftest import ROOT
from tests.fleets import TASK, Fleet, Server, complaints
from tests.links import free_port

pytestmark = pytest.mark.repository

DOCKER, MANIFESTS = ROOT / "docker", ROOT / "deploy" / "kubernetes"
REQUIREMENTS = sorted(DOCKER.glob("requirements*.txt"))
KUBERNETES = "1.32"
TORCH = "torch-2.13.0-py3-none-any.whl"
NOT_ROOT = {"runAsNonRoot": True, "runAsUser": 1000}
SANDBOX = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def variables(*commands: str) -> set[str]:
    """Return the variables that fedsz reads for a command."""
    return {f"FEDSZ_{name.upper()}" for name in options_of(*commands)}


def of_fedsz(names: Any) -> set[str]:
    return {name for name in names if name.startswith("FEDSZ_")}


def documents(*paths: Path) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return [document for path in paths for document in yaml.safe_load_all(path.read_text())]


@cache
def compose() -> dict[str, Any]:
    services: dict[str, Any] = documents(DOCKER / "compose.yaml")[0]["services"]
    return services


@cache
def manifests() -> list[dict[str, Any]]:
    return documents(*sorted(MANIFESTS.glob("*.yaml")))


def manifest(kind: str, name: str) -> Any:
    return next(m for m in manifests() if m["kind"] == kind and m["metadata"]["name"] == name)


def pinned() -> Iterator[Requirement]:
    for path in REQUIREMENTS:
        lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
        yield from map(Requirement, filter(None, lines))


def test_images_that_train_have_all_that_their_packages_require() -> None:
    """Pip is told to add nothing."""
    named = {canonicalize_name(each.name) for each in pinned()}
    lines = (DOCKER / "requirements-torch.txt").read_text().splitlines()
    pins = [Requirement(line).name for line in lines if not line.startswith("#")]
    required = [
        Requirement(line)
        for name in pins
        if name != "scikit-learn"  # of which images have the tables alone
        for line in metadata.requires(name) or []
    ]

    missing = {
        canonicalize_name(each.name)
        for each in required
        if each.marker is None or each.marker.evaluate({"extra": ""})
    } - named
    assert not missing


def test_the_key_that_signs_for_everybody_is_in_no_container_that_works() -> None:
    services = compose()

    def named(service: str) -> set[str]:
        return {volume.partition(":")[0] for volume in services[service]["volumes"]}

    authority = next(v for v in services["keys"]["volumes"] if v.endswith(":/keys"))
    assert services["keys"]["command"][0] == "/keys"
    assert authority.partition(":")[0] not in named(SERVER) | named(CLIENT)
    assert named(SERVER) & named("keys")
    assert named(CLIENT) & named("keys") == {"trust"}


def test_compose_names_options_that_exist_and_has_a_replica_for_each_share() -> None:
    services = compose()

    for service in (SERVER, CLIENT):
        assert of_fedsz(services[service]["environment"]) <= variables(service)
        assert services[service]["build"]["args"] == ["PIP_EXTRA_INDEX_URL"]  # the index of torch
    replicas = services["client"]["deploy"]["replicas"]
    assert services["server"]["environment"]["FEDSZ_MIN_CLIENTS"] == replicas
    assert "FEDSZ_INSECURE" not in str(services)


@pytest.mark.parametrize("service", ["keys", SERVER, CLIENT])
def test_containers_may_do_little(service: str) -> None:
    about = compose()[service]

    assert about["read_only"]
    assert about["cap_drop"] == ["ALL"]
    assert about["security_opt"] == ["no-new-privileges:true"]
    assert all(":size=" in mount for mount in about["tmpfs"])
    assert "USER 1000" in (DOCKER / "Dockerfile").read_text()


def test_the_dockerfile_names_options_that_exist_and_has_the_scripts_that_containers_run() -> None:
    run = (DOCKER / "compose.yaml").read_text() + (MANIFESTS / "server.yaml").read_text()
    text = (DOCKER / "Dockerfile").read_text()

    names = {name.partition("=")[0] for name in of_fedsz(text.split())}
    assert names
    assert names <= variables(SERVER) | variables(CLIENT)
    (copied,) = re.findall(r"^COPY (.*) /image/usr/lib/fedsz/$", text, re.M)
    wanted = {f"docker/{name}" for name in re.findall(r"/usr/lib/fedsz/(\w+\.py)", run + text)}
    assert "docker/health.py" in wanted
    assert wanted <= set(copied.split())


def test_the_folders_of_volumes_are_not_there_before_their_owner_is_set() -> None:
    """COPY gives an owner to what it makes, and not to a folder that is there."""
    text = (DOCKER / "Dockerfile").read_text()
    volumes = {each for about in compose().values() for each in about.get("volumes", [])}
    targets = {re.split(r":(?=/)", each)[-1].removesuffix(":ro") for each in volumes} - {"/data"}

    (made,) = re.findall(r"mkdir -p ((?:/volumes/\w+ ?)+)", text)
    (root,) = re.findall(r"cd /image && mkdir -p (.*) \\$", text, re.M)
    assert {path.removeprefix("/volumes") for path in made.split()} == targets
    assert not {target.strip("/") for target in targets} & set(root.split())
    assert "COPY --from=root --chown=1000:1000 /volumes /" in text


def test_images_have_versions_that_fedsz_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["train"], *extras["metrics"]]
    ranges = {Requirement(line).name: Requirement(line).specifier for line in wanted}
    held = (ROOT / "constraints.txt").read_text().splitlines()
    ranges |= {r.name: r.specifier for r in map(Requirement, filter(lambda x: "==" in x, held))}

    for one in pinned():
        ((operator, version),) = [(pin.operator, pin.version) for pin in one.specifier]
        assert operator == "=="
        if one.name in ranges:
            assert ranges[one.name].contains(version), one
    (torch,) = re.findall(r"^ARG TORCH=(.*)", (DOCKER / "Dockerfile").read_text(), re.M)
    assert ranges["torch"].contains(torch)


def wheels(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its pip
    environment = {**os.environ, "PATH": path, "WHEELS": str(folder), **variables}
    command = ["sh", "docker/wheels.sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


def test_a_torch_that_needs_cuda_is_refused_before_all_else(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    folder = tmp_path / "found"
    folder.mkdir()
    files = {
        "torch/lib/libtorch_cuda.so": "",
        "METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(folder / TORCH, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name if "/" in name else f"torch-2.13.0.dist-info/{name}", text)
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}

    done = wheels(tmp_path / "wheels", "download", "amd64", "torch==2.13.0", **index)

    assert done.returncode == 1
    assert "a build for CUDA" in done.stderr
    assert "PIP_EXTRA_INDEX_URL" in done.stderr


def test_the_index_of_torch_is_asked_for_nothing_else(tmp_path: Path) -> None:
    """Whoever serves it could give out any package under the versions that are pinned."""
    pip, folder, calls = tmp_path / "pip", tmp_path / "wheels", tmp_path / "calls"
    folder.mkdir()
    with zipfile.ZipFile(folder / TORCH, "w"):
        pass
    pip.write_text(f'#!/bin/sh\necho "${{PIP_EXTRA_INDEX_URL:-none}} $*" >> {calls}\n')
    pip.chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    index = {"PIP_EXTRA_INDEX_URL": "https://torch.example", "PATH": path}
    arch = {"aarch64": "arm64"}.get(platform.machine(), "amd64")
    for does in (("download", arch, "torch==2.13.0"), ("build", arch)):
        assert wheels(folder, *does, **index).returncode == 0

    indices = [line.partition(" ") for line in calls.read_text().splitlines()]
    assert [(index, "torch==" in asked) for index, _, asked in indices] == [
        ("https://torch.example", True),
        *[("none", False)] * 3,
    ]


def test_manifests_are_as_kubernetes_has_them() -> None:
    check = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")

    checked = [m["kind"] for m in manifests() if m["kind"] != "Kustomization"]
    for one in manifests():
        if one["kind"] != "Kustomization":  # of kubectl alone
            check.validate(one, KUBERNETES, strict=True)

    assert checked.count("Job") == 2
    assert {"NetworkPolicy", "Service", "PersistentVolumeClaim"} <= set(checked)
    assert not {"StatefulSet", "Deployment"} & set(checked)  # which start finished runs again


def test_the_kustomization_lists_all_manifests() -> None:
    (listed,) = [m for m in manifests() if m["kind"] == "Kustomization"]

    assert {*listed["resources"], "kustomization.yaml"} == {p.name for p in MANIFESTS.iterdir()}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {image["newTag"] for image in listed["images"]} == {version}
    clients = manifest("Job", "fedsz-client")["spec"]
    settings = manifest("ConfigMap", "fedsz-server")["data"]
    assert settings["FEDSZ_MIN_CLIENTS"] == str(clients["completions"])
    assert clients["parallelism"] == clients["completions"]  # all at once


@pytest.mark.parametrize("command", [SERVER, CLIENT])
def test_pods_may_do_little_and_name_options_that_exist(command: str) -> None:
    pod = manifest("Job", f"fedsz-{command}")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert NOT_ROOT.items() <= pod["securityContext"].items()
    assert container["securityContext"] == SANDBOX
    assert pod["restartPolicy"] == "OnFailure"  # a run that has finished stays so
    # Else each service's address comes as a variable of fedsz, which no option has.
    assert pod["enableServiceLinks"] is False
    settings = manifest("ConfigMap", container["envFrom"][0]["configMapRef"]["name"])
    assert of_fedsz(settings["data"]) <= variables(command)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert all("sizeLimit" in v["emptyDir"] for v in pod["volumes"] if "emptyDir" in v)
    assert mounted == volumes


def test_containers_are_configured_by_their_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.cli.test_cli import refuse

    monkeypatch.setenv("FEDSZ_INSECURE", "true")
    monkeypatch.setenv("FEDSZ_PARTITION", "9/4")

    assert "got '9/4'" in refuse("client")


def script(name: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, DOCKER / name, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_first_start_makes_keys_and_the_second_leaves_them(tmp_path: Path) -> None:
    keys, server, trust = tmp_path / "keys", tmp_path / "server", tmp_path / "trust"
    arguments = ("first_start.py", keys, server, trust, "server", "localhost")
    assert script(*arguments).returncode == 0
    made = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}

    assert script(*arguments).returncode == 0

    assert {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()} == made
    assert {path.name for path in trust.iterdir()} == {"ca.pem"}
    assert (trust / "ca.pem").read_bytes() == (keys / "ca.pem").read_bytes()
    assert {path.name for path in server.iterdir()} == {"server.pem", "server.key"}
    assert (server / "server.key").read_bytes() == (keys / "server.key").read_bytes()
    assert (server / "server.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_server_begins_a_run_continues_it_and_ends(fleet: Fleet, tmp_path: Path) -> None:
    folder, port = tmp_path / "run", free_port()
    keys, trust = tmp_path / "keys", tmp_path / "trust"
    made = script("first_start.py", tmp_path / "authority", keys, trust, "localhost")
    assert made.returncode == 0

    def serve() -> subprocess.Popen[str]:
        link = ("--tls-cert", keys / "server.pem", "--tls-key", keys / "server.key")
        size = ("--min-clients", 1, "--rounds", 60, "--port", port, "--json")
        run = ("--run-dir", folder, "--or-resume", "--task", TASK)
        return fleet.start("server", *link, *size, *run)

    first = Server(serve())
    link = ("--server", f"localhost:{port}", "--tls-ca", trust / "ca.pem")
    client = fleet.start("client", "--partition", "auto", "--task", TASK, *link)
    first.wait_for(lambda event: event["event"] == "round" and event["round"] == 1)
    first.process.kill()
    first.process.wait()
    second = Server(serve())

    assert second.process.wait() == client.wait() == 0
    assert second.rounds()[-1]["round"] == 60
    assert first.rounds()[0]["round"] == 0
    assert second.rounds()[0]["round"] > 0
    third = serve()
    told = third.communicate()[0]
    assert third.returncode == 0
    assert told == f"the run in {folder} has finished; another --run-dir begins another\n"
    assert complaints(client) == []


def test_health_is_of_what_runs_here() -> None:
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response({"/healthz": 200, "/readyz": 503}.get(self.path, 404))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    try:
        server = HTTPServer(("127.0.0.1", 9090), Healthy, bind_and_activate=False)
        server.allow_reuse_address = True
        server.server_bind()
    except OSError:
        pytest.skip("something here has the port of a container's server")
    with server:
        done = script("health.py", "server")  # nobody listens yet
        assert (done.returncode, done.stderr) == (1, "")
        server.server_activate()
        server.timeout = 30.0  # seconds for somebody to ask
        for what, code in (("server", 0), ("ready", 1)):
            thread = Thread(target=server.handle_request)
            thread.start()
            done = script("health.py", what)
            thread.join()
            assert (done.returncode, done.stderr) == (code, "")


def test_nobody_but_its_own_pod_and_prometheus_reaches_a_servers_metrics() -> None:
    (container,) = manifest("Job", "fedsz-server")["spec"]["template"]["spec"]["containers"]
    policy = manifest("NetworkPolicy", "fedsz-server")["spec"]

    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["exec"]["command"][:2] == ["python3", "/usr/lib/fedsz/health.py"]
    assert policy["policyTypes"] == ["Ingress"]
    assert all(rule.get("from") for rule in policy["ingress"])


def test_trimming_leaves_what_is_imported(tmp_path: Path) -> None:
    for package in ("numpy", "torch"):
        for name in ("core.py", "core.pyi", "tests/test_core.py", "lib/tests/data.txt"):
            (tmp_path / package / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / package / name).write_text("x")

    assert script("trim.py", tmp_path).returncode == 0

    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"numpy/core.pyc", "torch/core.py"}
