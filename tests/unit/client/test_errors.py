"""The error tree, and the table that leads from Triton's status and text to it."""

from __future__ import annotations

import copy
import pickle

import grpc
import pytest

import clip_client
from clip_client import ClipError, ImageError, ItemError, ItemErrors
from clip_client._transports.grpc_errors import ERROR_TABLE, find_row
from tests.fixtures.service_errors import SEEN

KINDS = [value for value in vars(clip_client).values() if isinstance(value, type) and issubclass(value, ClipError)]


def test_a_known_text_reaches_every_row() -> None:
    reached = {id(find_row(grpc.StatusCode[status], text)) for status, text, _ in SEEN}
    assert [row for row in ERROR_TABLE if id(row) not in reached] == []


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_status_has_an_error_for_any_text(code: grpc.StatusCode) -> None:
    assert issubclass(find_row(code, "a new text").error, ClipError)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not issubclass(kind, ItemError | ItemErrors)])
def test_errors_survive_copies_and_processes(kind: type[ClipError]) -> None:
    error = kind("a sentence.", request_id="r")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is kind
        assert (twin.message, twin.request_id, str(twin)) == ("a sentence.", "r", "a sentence. (request r)")


def test_image_errors_survive_copies_and_processes() -> None:
    error = ImageError("it ends early.", code="TRUNCATED", index=3, source="a.jpg", request_id="r")
    both = ItemErrors({3: error, 5: error})
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error)), pickle.loads(pickle.dumps(both)).errors[5]):
        assert (twin.code, twin.index, twin.source, twin.request_id) == ("TRUNCATED", 3, "a.jpg", "r")
        assert str(twin) == "a.jpg: TRUNCATED: it ends early. (request r)"
    assert str(pickle.loads(pickle.dumps(both))) == str(both) == f"{error}, and 1 more"


def test_an_image_without_a_path_is_named_by_its_index() -> None:
    assert str(ImageError("no.", code="EMPTY", index=7)) == "image 7: EMPTY: no."
