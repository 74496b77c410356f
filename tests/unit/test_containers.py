"""Checks that need no container engine: Dockerfiles, Compose, manifests and dashboards against their rules."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import clip_client
from clip_client import ClientConfig
from clip_client.gateway.command import main
from tests.paths import ROOT

CONTAINERS = ROOT / "containers"
DOCKERFILE = (CONTAINERS / "Dockerfile").read_text(encoding="utf-8")
STAGES = dict(re.findall(r"^FROM [^\n]* AS (\S+)\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.S | re.M))
TOOLS = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
SCRIPTS = sorted((CONTAINERS / "scripts").glob("*.sh"))


def _tool(name: str) -> str:
    found = shutil.which(name, path=TOOLS)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _yaml(path: str) -> Any:
    return yaml.safe_load((CONTAINERS / path).read_text(encoding="utf-8"))


def test_hadolint_finds_nothing() -> None:
    assert _run(_tool("hadolint"), CONTAINERS / "Dockerfile") == ""


def test_scripts_are_executable_and_shellcheck_finds_nothing() -> None:
    assert [path for path in SCRIPTS if not os.access(path, os.X_OK)] == []
    assert _run(_tool("shellcheck"), *SCRIPTS) == ""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("trial-secrets.sh", ["--help"]),
        ("trial-secrets.sh", [str(CONTAINERS)]),
        ("shared-memory-size.sh", []),
        ("shared-memory-size.sh", ["a", "b", "c"]),
    ],
)
def test_a_script_that_is_called_wrongly_prints_its_usage(script: str, words: list[str]) -> None:
    ended = subprocess.run([CONTAINERS / "scripts" / script, *words], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.startswith(f"usage: {script} ")) == (2, True)


def test_the_client_that_the_trial_prints_can_be_made(tmp_path: Path) -> None:
    script = ROOT / "containers" / "scripts" / "trial-secrets.sh"
    printed = subprocess.run([script, tmp_path / "secrets"], capture_output=True, text=True, check=True).stdout
    (call,) = re.findall("^a client: (.*)$", printed, re.MULTILINE)
    token = (tmp_path / "secrets" / "token").read_text(encoding="ascii").strip()
    assert repr(eval(call, {**vars(clip_client), "TOKEN": token})) == "<ClipClient grpcs://localhost:8443 [new]>"


def test_images_run_without_root() -> None:
    for target in ("cpu", "mounted", "tensorrt", "plain", "comparison"):
        assert re.findall(r"^USER (.*)$", STAGES[target], re.M)[-1] == "1000:1000", target


def test_the_weights_are_not_downloaded_into_the_repository() -> None:
    (cache,) = re.findall(r"HF_HOME=(\S+)", STAGES["cpu"])
    (repository,) = re.findall(r'"--repository", "([^"]+)"', STAGES["cpu"])
    assert not PurePath(cache).is_relative_to(repository)


def test_the_builder_gets_what_is_copied_and_no_secret() -> None:
    assert not re.search(r"(?i)password|secret|token", "".join(re.findall(r"^(?:ENV|ARG).*$", DOCKERFILE, re.M)))
    everything, *ignore = (CONTAINERS / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()[1:]
    assert everything == "*", "only what is named goes to the builder"
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), f"{source} is not in the repository"
            assert any(source == name or source.startswith(f"{name}/") for name in allowed), f"{source} is ignored"


def test_the_release_of_triton_has_no_published_vulnerability() -> None:
    ((year, month),) = re.findall(r"^ARG TRITON_VERSION=(\d+)\.(\d+)$", DOCKERFILE, re.M)
    assert (int(year), int(month)) >= (25, 7)


def test_the_pinned_versions_meet_the_package_requirements() -> None:
    lines = (CONTAINERS / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {Requirement(line).name.lower(): Requirement(line) for line in lines if line and line[0] != "#"}
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    for line in config["options"]["install_requires"].split():
        asked = Requirement(line)
        (version,) = pinned[asked.name.lower()].specifier
        assert asked.specifier.contains(version.version), f"{asked} and {pinned[asked.name.lower()]}"


def test_compose_files_follow_their_schema() -> None:
    files = [CONTAINERS / name for name in ("compose.yaml", "compose.gpu.yaml")]
    _run(_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", *files)


def test_every_service_is_hardened_and_only_the_edge_is_open() -> None:
    compose = _yaml("compose.yaml")
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["pids_limit"], name
        assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))
        if service["image"] != compose["services"]["triton"]["image"]:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), f"{name} has no exact version"
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert ports["triton"] == []
    assert ports["envoy"] == ["8443:8443"]
    assert all(port.startswith("127.0.0.1:") for name in ("gateway", "prometheus", "grafana") for port in ports[name])
    assert compose["networks"]["serving"]["internal"] is True
    mounted = [
        volume.split(":")[0] for service in compose["services"].values() for volume in service.get("volumes", [])
    ]
    for source in mounted:
        assert not source.startswith(".") or (CONTAINERS / source).exists(), f"{source} is not in the repository"


def _size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([a-zA-Z]+)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"gb": 2**30, "Gi": 2**30, "m": 2**20, "Mi": 2**20}[unit]


def test_shared_memory_fits_a_full_batch_of_the_largest_images() -> None:
    (limit,) = re.findall(r"max_request_bytes: (\d+)", (CONTAINERS / "chart" / "files" / "envoy.yaml").read_text())
    config = (ROOT / "triton_models" / "clip_preprocess" / "config.pbtxt").read_text(encoding="utf-8")
    (rows,) = re.findall(r"^max_batch_size: (\d+)", config, re.M)
    needed = int(_run(CONTAINERS / "scripts" / "shared-memory-size.sh", rows, limit, str(224 * 224 * 3)))
    assert needed > int(rows) * int(limit)
    assert _size(_yaml("compose.yaml")["services"]["triton"]["shm_size"]) >= needed
    (shared,) = [volume["emptyDir"] for volume in _pod(_chart(*EDGE))["volumes"] if volume["name"] == "shared-memory"]
    assert shared["medium"] == "Memory"
    assert _size(shared["sizeLimit"]) >= needed


EDGE = ("edge.tlsSecret=tls", "edge.jwksSecret=keys")
"""Settings that the chart demands."""
GATEWAY = ("gateway.enabled=true", "gateway.tokenSecret=token")
MONITORING = ("monitoring.enabled=true", "monitoring.labels.release=prometheus")


def _helm(*settings: str) -> subprocess.CompletedProcess[str]:
    options = [option for setting in settings for option in ("--set", setting)]
    command = [_tool("helm"), "template", "clip", str(CONTAINERS / "chart"), "--namespace", "photos", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@cache
def _chart(*settings: str) -> dict[str, Any]:
    """Kind -> resource of the chart, rendered with ``settings`` and checked against the schemas of Kubernetes."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    done = _helm(*settings)
    assert done.returncode == 0, done.stderr
    resources = [resource for resource in yaml.safe_load_all(done.stdout) if resource is not None]
    for resource in resources:
        assert resource["metadata"]["namespace"] == "photos"
        if resource["apiVersion"].split("/")[0] in ("v1", "apps", "policy", "networking.k8s.io"):
            kubernetes_validate.validate(resource, "1.31", strict=True)
    by_kind = {resource["kind"]: resource for resource in resources}
    assert len(by_kind) == len(resources)
    return by_kind


def _pod(resources: dict[str, Any]) -> Any:
    return resources["Deployment"]["spec"]["template"]["spec"]


def _container(resources: dict[str, Any], name: str) -> Any:
    (container,) = [one for one in _pod(resources)["containers"] if one["name"] == name]
    return container


def test_the_parts_of_the_chart_find_each_other_and_watch_what_compose_does() -> None:
    resources = _chart(*EDGE, *GATEWAY, "autoscaling.kind=keda", *MONITORING)
    labels = resources["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    assert resources["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels
    assert resources["Service"]["spec"]["selector"].items() <= labels
    assert resources["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels
    assert resources["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels
    monitor = resources["ServiceMonitor"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= resources["Service"]["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    served = {port["name"] for port in resources["Service"]["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} < served
    assert resources["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == "clip"
    assert "replicas" not in resources["Deployment"]["spec"], "each upgrade would undo the autoscaler's work"
    assert resources["PrometheusRule"]["spec"] == _yaml("chart/files/rules.yaml")
    jobs = {
        relabeling["replacement"] for endpoint in monitor["spec"]["endpoints"] for relabeling in endpoint["relabelings"]
    }
    assert jobs == {job["job_name"] for job in _yaml("prometheus/prometheus.yaml")["scrape_configs"]}


def _grpc_ports(container: Any) -> list[int]:
    return [port["containerPort"] for port in container["ports"] if port["name"] == "grpc"]


def test_only_envoy_of_the_same_pod_reaches_triton() -> None:
    resources = _chart(*EDGE)
    triton, envoy = (_container(resources, name) for name in ("triton", "envoy"))
    assert triton["args"][-2:] == ["--", "--grpc-address=127.0.0.1"]
    assert _grpc_ports(envoy) == [8443]
    config = yaml.safe_load(resources["ConfigMap"]["data"]["envoy.yaml"])["static_resources"]
    (upstream,) = [one for one in config["clusters"] if one["name"] == "triton"]
    (endpoint,) = upstream["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 8001}
    assert config["listeners"] == _yaml("chart/files/envoy.yaml")["static_resources"]["listeners"]
    assert {mount["mountPath"] for mount in envoy["volumeMounts"]} == {"/etc/envoy", "/run/secrets"}
    open_to_all = _container(_chart("edge.enabled=false"), "triton")
    assert _grpc_ports(open_to_all) == [8001]
    assert "--" not in open_to_all["args"]


def test_containers_of_the_chart_have_no_privileges() -> None:
    pod = _pod(_chart(*EDGE, *GATEWAY))
    assert {one["name"] for one in pod["containers"]} == {"triton", "envoy", "gateway"}
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("downloads", [False, True])
def test_a_model_in_a_volume(downloads: bool) -> None:
    resources = _chart(*EDGE, "model.download=ViT-B-32" if downloads else "model.existingClaim=offline")
    triton = _container(resources, "triton")
    (mount,) = [one for one in triton["volumeMounts"] if one["mountPath"] == "/models"]
    (volume,) = [one["persistentVolumeClaim"] for one in _pod(resources)["volumes"] if one["name"] == mount["name"]]
    assert mount["readOnly"] is volume["readOnly"] is not downloads
    assert bool(resources["NetworkPolicy"]["spec"]["egress"]) is downloads
    assert ("--model=ViT-B-32" in triton["args"]) is downloads
    assert any(one["mountPath"] == "/weights" for one in triton["volumeMounts"]) is downloads, "the root is read-only"
    if downloads:
        claim = resources["PersistentVolumeClaim"]["metadata"]
        assert claim["name"] == volume["claimName"]
        assert claim["annotations"] == {"helm.sh/resource-policy": "keep"}
    else:
        assert volume["claimName"] == "offline"


def test_an_image_by_digest_on_gpus() -> None:
    digest = "sha256:" + "0" * 64
    resources = _chart(*EDGE, f"image.digest={digest}", "image.repository=registry.example/clip", "gpus=2")
    triton = _container(resources, "triton")
    assert triton["image"] == f"registry.example/clip@{digest}"
    assert triton["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": 2}
    # The root file system is read-only, so TensorRT needs a place for its engines.
    (cache,) = re.findall(r"--tensorrt-cache (\S+)", DOCKERFILE)
    assert str(Path(cache).parent) in [mount["mountPath"] for mount in triton["volumeMounts"]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((), "edge.jwksSecret is empty: name a Secret"),
        (("edge.jwksSecret=keys",), "edge.tlsSecret is empty: name a Secret"),
        ((*EDGE, "model.download=ViT-B-32", "model.existingClaim=offline"), "not both"),
        ((*EDGE, "model.pretrained=openai"), "model.download, which is empty"),
        ((*EDGE, "autoscaling.maximum=1"), "autoscaling.maximum (1) is less than autoscaling.minimum (2)"),
        ((*EDGE, "image.digest=latest"), "digest"),
        ((*EDGE, "gateway.enabled=true"), "gateway.tokenSecret is empty: name a Secret"),
        ((*EDGE, "modle.download=ViT-B-32"), "modle"),
    ],
)
def test_the_chart_refuses_values_that_contradict(settings: tuple[str, ...], message: str) -> None:
    done = _helm(*settings)
    assert done.returncode != 0
    assert message in done.stderr


def test_the_gateway_of_the_chart_and_of_compose_has_options_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = _chart(*EDGE, *GATEWAY, "gateway.arguments={--workers=2}")
    gateway = _container(resources, "gateway")
    (mount,) = [one for one in gateway["volumeMounts"] if one["name"] == "gateway-token"]
    (volume,) = [one for one in _pod(resources)["volumes"] if one["name"] == mount["name"]]
    assert f"--callers-token-file={mount['mountPath']}/{volume['secret']['items'][0]['path']}" in gateway["args"]
    assert {"name": "http", "port": 8080, "targetPort": "http"} in resources["Service"]["spec"]["ports"]
    assert {"port": "http"} in resources["NetworkPolicy"]["spec"]["ingress"][0]["ports"]
    started: list[tuple[str, int, int]] = []
    monkeypatch.setattr("uvicorn.run", lambda *_, host, port, workers, **__: started.append((host, port, workers)))
    monkeypatch.setattr("socket.socket.bind", lambda *_: None)  # another program of this machine may use the port
    for command in (
        [*gateway["command"], *(one for one in gateway["args"] if "token" not in one)],
        _yaml("compose.yaml")["services"]["gateway"]["entrypoint"],
    ):
        assert command[0] == "clip-gateway"
        assert main(command[1:]) == 0
    assert started == [("0.0.0.0", 8080, 2)] * 2
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ, "the folder is gone"


def test_pods_of_the_chart_are_probed_by_the_canary_and_have_time_to_drain() -> None:
    resources = _chart(*EDGE, *GATEWAY, "autoscaling.kind=keda", *MONITORING)
    triton = _container(resources, "triton")
    ports = {port["name"]: port["containerPort"] for port in triton["ports"]}
    assert f'"--health-port", "{ports["health"]}"' in STAGES["mounted"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert triton[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
    startup_s = triton["startupProbe"]["periodSeconds"] * triton["startupProbe"]["failureThreshold"]
    assert resources["Deployment"]["spec"]["progressDeadlineSeconds"] > startup_s
    assert _container(resources, "envoy")["readinessProbe"]["tcpSocket"] == {"port": "grpc"}
    # clip-serve drains for 30 s and gives Triton 10 s more; the hook before it takes 5 s.
    assert _pod(resources)["terminationGracePeriodSeconds"] >= 45
    assert resources["Service"]["spec"]["clusterIP"] == "None"
    (trigger,) = resources["ScaledObject"]["spec"]["triggers"]
    recorded = [rule["record"] for rule in _yaml("chart/files/rules.yaml")["groups"][0]["rules"] if "record" in rule]
    assert any(f"avg({name}{{" in trigger["metadata"]["query"] for name in recorded)


def test_the_ray_job_runs_a_command_that_exists_in_pods_that_are_valid() -> None:
    spec = _yaml("kubernetes/ray-job.yaml")["spec"]
    program, command, *arguments = shlex.split(spec["entrypoint"])
    assert (program, command) == ("clip-client", "embed")
    known = _run(sys.executable, "-m", "clip_client", command, "--help")
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert re.search(rf"^  {option}\b", known, re.M), f"{option} is no option of clip-client {command}"
    cluster = spec["rayClusterSpec"]
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["maxReplicas"]
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, "1.31", strict=True)


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool = _tool("promtool")
    _run(promtool, "check", "rules", CONTAINERS / "chart" / "files" / "rules.yaml")
    _run(promtool, "check", "config", "--syntax-only", CONTAINERS / "prometheus" / "prometheus.yaml")
    _run(promtool, "test", "rules", CONTAINERS / "prometheus" / "rules_test.yaml")


def test_the_queue_is_reported_only_past_what_a_client_aims_at() -> None:
    rules = [rule for group in _yaml("chart/files/rules.yaml")["groups"] for rule in group["rules"]]
    (rule,) = [one for one in rules if one.get("alert") == "ClipQueueing"]
    assert rule["expr"] == f"clip_queue_milliseconds > {ClientConfig().target_latency_s * 1000:.0f}"


def test_panels_have_a_description_a_unit_and_a_source() -> None:
    board = json.loads((CONTAINERS / "grafana" / "dashboards" / "clip.json").read_text(encoding="utf-8"))
    (source,) = _yaml("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == source["uid"]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit, panel["title"]
        assert unit != "percentunit" or "100" not in str(panel["targets"]), "Triton's shares are 0 to 1, too"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
