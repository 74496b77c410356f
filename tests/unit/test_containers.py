"""Checks that need no container engine: Dockerfiles, Compose, manifests and dashboards against their rules."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.paths import ROOT

CONTAINERS = ROOT / "containers"
DOCKERFILES = sorted(CONTAINERS.glob("*.Dockerfile"))
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


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint_finds_nothing(path: Path) -> None:
    _run(_tool("hadolint"), path)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_executable_and_shellcheck_finds_nothing(path: Path) -> None:
    assert os.access(path, os.X_OK)
    _run(_tool("shellcheck"), path)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_images_run_without_root_and_hold_no_secret(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^USER (.*)$", text, re.M)[-1] == "1000:1000"
    assert "\nHEALTHCHECK " in text
    assert not re.search(r"(?i)password|secret|token", "".join(re.findall(r"^(?:ENV|ARG).*$", text, re.M)))
    ignored = path.with_name(f"{path.name}.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored, "only what is named goes to the builder"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_copied_files_exist_and_are_not_ignored(path: Path) -> None:
    ignore = path.with_name(f"{path.name}.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line[1:] for line in ignore if line.startswith("!")]
    for line in re.findall(r"^COPY (?!--from)(.*)$", path.read_text(encoding="utf-8"), re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), f"{source} is not in the repository"
            assert any(source == name or source.startswith(f"{name}/") for name in allowed), f"{source} is ignored"


def test_the_release_of_triton_has_no_published_vulnerability() -> None:
    dockerfile = (CONTAINERS / "server.Dockerfile").read_text()
    ((year, month),) = re.findall(r"^ARG TRITON_VERSION=(\d+)\.(\d+)$", dockerfile, re.M)
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


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_files_follow_their_schema(name: str) -> None:
    if importlib.util.find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed")
    command = ("-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec")
    _run(sys.executable, *command, CONTAINERS / name)


def test_every_service_is_hardened_and_only_the_edge_is_open() -> None:
    compose = _yaml("compose.yaml")
    for name, service in compose["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["pids_limit"], name
        assert not any("docker.sock" in str(volume) for volume in service.get("volumes", []))
        if "image" in service and "build" not in service:
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), f"{name} has no exact version"
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert ports["triton"] == []
    assert ports["envoy"] == ["8443:8443"]
    assert all(port.startswith("127.0.0.1:") for name in ("prometheus", "grafana") for port in ports[name])
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
    (limit,) = re.findall(r"max_request_bytes: (\d+)", (CONTAINERS / "envoy" / "envoy.yaml").read_text())
    config = (ROOT / "triton_models" / "clip_preprocess" / "config.pbtxt").read_text(encoding="utf-8")
    (rows,) = re.findall(r"^max_batch_size: (\d+)", config, re.M)
    needed = int(_run(CONTAINERS / "scripts" / "shared-memory-size.sh", rows, limit, str(224 * 224 * 3)))
    assert needed > int(rows) * int(limit)
    assert _size(_yaml("compose.yaml")["services"]["triton"]["shm_size"]) >= needed
    volumes = _manifest("deployment.yaml")["spec"]["template"]["spec"]["volumes"]
    (shared,) = [volume["emptyDir"] for volume in volumes if volume["name"] == "shared-memory"]
    assert shared["medium"] == "Memory"
    assert _size(shared["sizeLimit"]) >= needed


def _manifest(name: str) -> Any:
    return _yaml(f"kubernetes/base/{name}")


@pytest.mark.parametrize("overlay", ["base", "gpu"])
def test_kustomize_builds_valid_manifests(overlay: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    built = _run(_tool("kubectl"), "kustomize", CONTAINERS / "kubernetes" / overlay)
    resources = list(yaml.safe_load_all(built))
    kinds = {resource["kind"] for resource in resources}
    assert kinds >= {
        "Deployment",
        "Service",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "NetworkPolicy",
        "Namespace",
    }
    for resource in resources:
        kubernetes_validate.validate(resource, "1.31", strict=True)
    by_kind = {resource["kind"]: resource for resource in resources}
    pod = by_kind["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    assert by_kind["Service"]["spec"]["selector"].items() <= labels
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels
    assert by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= labels
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert ("nvidia.com/gpu" in limits) == (overlay == "gpu")


def test_pods_are_probed_by_the_canary_and_have_time_to_drain() -> None:
    pod = _manifest("deployment.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    entry_point = (CONTAINERS / "server.Dockerfile").read_text(encoding="utf-8")
    assert f'"--health-port", "{ports["health"]}"' in entry_point
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True
    # clip-serve drains for 30 s and gives Triton 10 s more; the hook before it takes 5 s.
    assert pod["terminationGracePeriodSeconds"] >= 45
    assert _manifest("service.yaml")["spec"]["clusterIP"] == "None"
    assert _manifest("network.yaml")["spec"]["egress"] == []
    (metric,) = _manifest("autoscaler.yaml")["spec"]["metrics"]
    recorded = [rule.get("record") for rule in _yaml("prometheus/rules.yaml")["groups"][0]["rules"]]
    assert metric["pods"]["metric"]["name"] in recorded


def test_alerts_fire_when_they_should_and_only_then() -> None:
    promtool = _tool("promtool")
    _run(promtool, "check", "rules", CONTAINERS / "prometheus" / "rules.yaml")
    _run(promtool, "check", "config", "--syntax-only", CONTAINERS / "prometheus" / "prometheus.yaml")
    _run(promtool, "test", "rules", CONTAINERS / "prometheus" / "rules_test.yaml")


def test_panels_have_a_description_and_do_not_overlap() -> None:
    board = json.loads((CONTAINERS / "grafana" / "dashboards" / "clip.json").read_text(encoding="utf-8"))
    (source,) = _yaml("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == source["uid"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not covered & cells, f"{panel['title']} lies on another panel"
        assert all(0 <= x < 24 for x, _ in covered)
        cells |= covered
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_tensorrt_overlay_finds_its_model_and_its_cache_in_the_image() -> None:
    overlay = CONTAINERS / "tensorrt" / "models" / "clip_encoder_tensorrt"
    config = (overlay / "config.pbtxt").read_text(encoding="utf-8")
    dockerfile = (CONTAINERS / "server.Dockerfile").read_text(encoding="utf-8")
    (name,) = re.findall(r'^default_model_filename: "(.*)"', config, re.M)
    copies = dict(re.findall(r"^COPY (?:--from=\w+ )?(\S+) (/clip/\S+)$", dockerfile, re.M))
    version = Path(copies["containers/tensorrt/models"]) / "clip_encoder_tensorrt" / "1"
    model = Path(os.path.normpath(version / name))
    assert model == Path(copies["/build/triton_models"]) / "clip_encoder" / "1" / "model.onnx"
    for path in set(re.findall(r'value: "(/[^"]+)"', config)):
        assert f"VOLUME {path}\n" in dockerfile
