"""The programs on docs/gateway.md get vectors from a gateway and from Triton, and all get the same."""

import asyncio
import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.fixtures.server import Server
from tests.fixtures.gateways import gateway
from tests.fixtures.packaging.pages import programs

GRPCURL: Final = f"""#!{sys.executable}
import sys
import grpc
from google.protobuf import json_format
from tritonclient.grpc.service_pb2 import ModelInferRequest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
*_, data, address, method = sys.argv[1:]
assert (data, method) == ("@", "inference.GRPCInferenceService/ModelInfer"), sys.argv
request = json_format.Parse(sys.stdin.read(), ModelInferRequest())
print(json_format.MessageToJson(GRPCInferenceServiceStub(grpc.insecure_channel(address)).ModelInfer(request)))
"""
"""A ``grpcurl`` for what the page asks of it: it reads the same JSON, and writes the same."""


async def test_all_programs_of_the_page_get_the_same_vector(pair_server: Server, photos: Path, tmp_path: Path) -> None:
    for name, photo in (("a.jpg", "astronaut.jpg"), ("b.jpg", "coffee.jpg")):
        shutil.copyfile(photos / photo, tmp_path / name)
    (tmp_path / "grpcurl").write_text(GRPCURL, encoding="utf-8")
    (tmp_path / "grpcurl").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "NO_PROXY": "*"}
    printed = []
    async with gateway(pair_server.grpc_url) as http:
        addresses = {
            "http://localhost:8080": str(http.base_url).rstrip("/"),
            "localhost:8001": pair_server.grpc_url,
            "localhost:8000": pair_server.http_url,
        }
        for language, code, _ in programs("gateway.md", __file__):
            for there, here in addresses.items():
                code = code.replace(there, here)
            command = (sys.executable, "-c", code) if language == "python" else ("bash", "-ec", code)
            done = await asyncio.to_thread(
                subprocess.run, command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{code}\n{done.stderr}"
            printed.append(done.stdout)
    curl, openai, tritonclient, grpcurl, triton_http = printed
    forms, _, text = curl.partition("]}{")
    expected = np.array(json.loads(forms + "]}")["results"][0]["embedding"], np.float32)
    assert len(json.loads("{" + text)["data"][0]["embedding"]) == len(expected) == 512
    assert openai.split() == ["[512,", "512]"]
    assert tritonclient.startswith("(2, 512) [0 0]")
    answer = json.loads(grpcurl)
    order = [output["name"] for output in answer["outputs"]]
    raw = base64.b64decode(answer["rawOutputContents"][order.index("embedding")])
    for vector in (raw, (tmp_path / "answer").read_bytes()[-2048:]):
        assert np.array_equal(np.frombuffer(vector, "<f4"), expected)
    assert '"name":"embedding","datatype":"FP32","shape":[1,512]' in triton_http
