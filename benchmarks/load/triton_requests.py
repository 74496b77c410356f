"""Any model of a Triton, asked as NVIDIA's client asks it: in binary over gRPC or HTTP, or in JSON over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Final

import numpy as np
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
Infer = Callable[[Arrays], Awaitable[list[Any]]]

TIMEOUT_S: Final = 600.0
"""Long, so that a slow system shows as slow and not as failing."""


@asynccontextmanager
async def triton_requests(url: str, model: str, outputs: Sequence[str], protocol: str) -> AsyncIterator[Infer]:
    """Gives a function from inputs by name to the arrays of ``outputs``. An array of objects is one of files.

    ``url`` is a host and a port. ``protocol`` is ``grpc``, ``http`` or ``json``.
    """
    if protocol == "json":
        async with json_posts(f"http://{url}/v2/models/{model}/infer") as post:

            async def infer_json(inputs: Arrays) -> list[Any]:
                tensors = [json_tensor(name, array) for name, array in inputs.items()]
                answer = await post({"inputs": tensors, "outputs": [{"name": name} for name in outputs]})
                return [
                    np.array(one["data"], triton_to_np_dtype(one["datatype"])).reshape(one["shape"])
                    for one in answer["outputs"]
                ]

            yield infer_json
        return
    triton: Any = import_module(f"tritonclient.{protocol}.aio")
    options = {"conn_limit": 512, "conn_timeout": TIMEOUT_S} if protocol == "http" else {}
    requested = [triton.InferRequestedOutput(name) for name in outputs]
    async with triton.InferenceServerClient(url, **options) as client:

        async def infer(inputs: Arrays) -> list[Any]:
            tensors = []
            for name, array in inputs.items():
                tensors.append(triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
                tensors[-1].set_data_from_numpy(array)
            answer = await client.infer(model, tensors, outputs=requested)
            return [answer.as_numpy(name) for name in outputs]

        yield infer


def json_tensor(name: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    """An input of Triton's HTTP protocol."""
    kind = np_to_triton_dtype(array.dtype)
    return {"name": name, "datatype": kind, "shape": list(array.shape), "data": array.ravel().tolist()}


@asynccontextmanager
async def json_posts(url: str) -> AsyncIterator[Callable[[Any], Awaitable[Any]]]:
    """Gives a function that posts JSON to ``url`` and returns the JSON of the answer."""
    import aiohttp

    # No limit of connections, because the load decides how many requests are in flight.
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=TIMEOUT_S)
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:

        async def post(body: Any) -> Any:
            async with session.post(url, data=json.dumps(body)) as response:
                response.raise_for_status()
                return await response.json()

        yield post
