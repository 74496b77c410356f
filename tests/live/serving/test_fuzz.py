"""Damaged files among good ones in a real server: a slice here, and 10,000 with ``make fuzz``."""

import itertools
import os
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.fixtures.server import Server
from preprocess_ensemble.contract import DEFAULT_NAMES, EMBEDDING, STATUS, ImageStatus
from tests.fixtures.images.damaged_files import Inputs, seeds
from tests.live.raw import infer

INPUTS = int(os.environ.get("FUZZ_LIVE", "240"))
SEED = int(os.environ.get("FUZZ_SEED", "11"))
BAD, GOOD = 24, 8  # files in a batch


@pytest.mark.timeout(300 + INPUTS // 2)
def test_damaged_files_change_no_neighbour(server: Server) -> None:
    def embed(files: list[bytes]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        answer = infer(server.grpc_url, DEFAULT_NAMES.image, files, outputs=(EMBEDDING, STATUS))
        return answer[EMBEDDING], answer[STATUS][:, 0]

    inputs = Inputs(SEED)
    alone = {file: embed([file])[0].tobytes() for file in itertools.chain.from_iterable(seeds().values())}

    def send(numbers: range) -> None:
        randomness = random.Random(f"{SEED}/batch/{numbers[0]}")
        rows: list[tuple[int | None, bytes]] = [(number, inputs[number]) for number in numbers]
        rows += [(None, file) for file in randomness.choices(list(alone), k=GOOD)]
        randomness.shuffle(rows)
        vectors, statuses = embed([file for _, file in rows])
        for (number, file), vector, status in zip(rows, vectors, statuses, strict=True):
            if number is None:
                assert (status, vector.tobytes()) == (0, alone[file]), f"a good neighbour of {numbers} changed"
            else:
                assert bool(np.isnan(vector).all()) is bool(status), f"Inputs({SEED})[{number}]"
                assert status != ImageStatus.INTERNAL, f"Inputs({SEED})[{number}]"

    with ThreadPoolExecutor(4) as executor:
        batches = (range(start, min(start + BAD, INPUTS)) for start in range(0, INPUTS, BAD))
        list(executor.map(send, batches))
    assert all(embed([file])[0].tobytes() == vector for file, vector in alone.items())
