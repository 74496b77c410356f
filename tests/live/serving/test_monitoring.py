"""Every query of the dashboard and of the alerts, evaluated by a real Prometheus that scrapes a real server."""

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.fixtures.server import Server, free_port
from tests.fixtures.images.image_files import jpeg
from tests.fixtures.waiting import wait_until
from tests.live.raw import infer
from tests.paths import ROOT

CONTAINERS = ROOT / "containers"
PROMETHEUS = shutil.which("prometheus")
IMAGES = [jpeg(size=(300, 200)), jpeg(size=(300, 200)), b"not an image"]
NOT_HERE = re.compile(r"nv_gpu_|nv_inference_request_failure|status!=\"OK\"")
"""Parts of queries that have no samples without a GPU, or without a failure."""

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: apt-get install prometheus")


def _expressions() -> list[str]:
    board = json.loads((CONTAINERS / "grafana" / "dashboards" / "clip.json").read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def _metrics(expression: str) -> list[str]:
    return re.findall(r"\b(?:nv|clip)_\w+", re.sub(r'"[^"]*"', "", expression))


def _ask(url: str, path: str, **parameters: str) -> Any:
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{query}", timeout=60) as answer:
        found = json.load(answer)
    assert found["status"] == "success"
    return found["data"]


def _samples(url: str, expression: str) -> list[Any]:
    result: list[Any] = _ask(url, "query", query=expression)["result"]
    return result


@contextmanager
def _prometheus(directory: Path, server: Server) -> Iterator[str]:
    config = yaml.safe_load((CONTAINERS / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    targets = {"triton": server.metrics_url.split("/")[2], "clip-serve": server.health_url.split("/")[2]}
    config["scrape_configs"] = [
        {"job_name": job["job_name"], "static_configs": [{"targets": [targets[job["job_name"]]]}]}
        for job in config["scrape_configs"]
        if job["job_name"] in targets
    ]
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    shutil.copy(CONTAINERS / "chart" / "files" / "rules.yaml", directory)
    port = free_port()
    command = [str(PROMETHEUS), f"--config.file={directory / 'prometheus.yaml'}", "--log.level=error"]
    command += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    process = subprocess.Popen(command)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(prometheus: str, expression: str, server: Server) -> None:
    """Keep the server busy until the expression has a sample."""

    def has_sample() -> bool:
        infer(server.grpc_url, "clip_image", IMAGES, outputs=["embedding", "status", "error", "fingerprint"])
        try:
            return bool(_samples(prometheus, expression))
        except OSError as error:  # it does not listen yet, or says that it is not ready
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            return False

    wait_until(has_sample, f"there is a sample of {expression}")


def test_dashboard_and_alerts_find_what_they_ask_for(server: Server, tmp_path: Path) -> None:
    with _prometheus(tmp_path, server) as prometheus:
        _wait_for(prometheus, 'rate(clip_preprocess_images_total{status="NOT_AN_IMAGE"}[1m]) > 0', server)
        for expression in _expressions():
            if not NOT_HERE.search(expression):
                # A rate needs two samples of its source, and the sources are scraped one after the other.
                _wait_for(prometheus, expression.replace("$instance", ".*"), server)
        names = set(_ask(prometheus, "label/__name__/values"))
        (group,) = _ask(prometheus, "rules")["groups"]
        for query in (*_expressions(), *(rule["query"] for rule in group["rules"])):
            for name in _metrics(query):
                assert name in names or name.startswith("nv_gpu_"), f"no server exports {name}"
        assert _samples(prometheus, 'sum(rate(clip_preprocess_images_total{status!="OK"}[1m]))')
        for rule in group["rules"]:
            assert rule["health"] == "ok", rule
            # A third of the images are bad here, so one alert waits for its time to be over.
            assert rule.get("state") != "firing", f"{rule['name']} fires on a server that is well"
        # A scrape that came too late for its fifth of a second leaves no sample behind; the next one does.
        _wait_for(prometheus, "clip_serve_healthy == 1", server)
