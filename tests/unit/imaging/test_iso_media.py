"""What the boxes of a HEIC say about its pictures, in files put together box by box."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.iso_media import read_iso_media
from preprocess_ensemble.imaging.limits import DecodeError
from tests.fixtures.images import image_files, phone_files
from tests.fixtures.images.embedded_files import box

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MEGAPIXEL = (1000, 1000)


def heif(
    items: Mapping[int, bytes],
    references: Sequence[tuple[bytes, int, tuple[int, ...]]] = (),
    *,
    primary: int = 1,
    size: tuple[int, int] = MEGAPIXEL,
) -> bytes:
    """A file of pictures of one size, with references between them and without pixels."""
    entries = [box(b"infe", b"\2\0\0\0", struct.pack(">HH", number, 0), kind) for number, kind in items.items()]
    lists = [
        box(kind, struct.pack(f">HH{len(to)}H", item, len(to), *to)) for kind, item, to in references
    ]  # version 0: numbers of 16 bits
    owners = b"".join(struct.pack(">HBB", number, 1, 0x81) for number in items)
    return box(b"ftyp", b"heic", bytes(4)) + box(
        b"meta",
        bytes(4),
        box(b"pitm", bytes(4), struct.pack(">H", primary)),
        box(b"iinf", bytes(4), struct.pack(">H", len(items)), *entries),
        box(b"iref", bytes(4), *lists),
        box(
            b"iprp",
            box(b"ipco", box(b"ispe", bytes(4), struct.pack(">II", *size))),
            box(b"ipma", bytes(4), struct.pack(">I", len(items)), owners),
        ),
    )


def decoded_megapixels(data: bytes, at_most: int = 50) -> float:
    return read_iso_media(data).decoded_pixels(data, at_most * 10**6) / 1e6


def test_a_picture_costs_what_its_parts_cost_as_often_as_they_are_used() -> None:
    items = {1: b"grid", 2: b"hvc1", 3: b"hvc1", 4: b"hvc1", 5: b"hvc1"}
    assert decoded_megapixels(heif({1: b"hvc1"})) == 1
    assert decoded_megapixels(heif(items, [(b"dimg", 1, (2, 3, 4))])) == 3
    assert decoded_megapixels(heif(items, [(b"dimg", 1, (2, 2, 2, 2, 3))])) == 5
    assert decoded_megapixels(heif(items, [(b"dimg", 1, (2, 3)), (b"dimg", 1, (4,))])) == 3
    transparent = [(b"dimg", 1, (2,)), (b"auxl", 3, (1,)), (b"thmb", 4, (1,))]
    assert decoded_megapixels(heif(items, transparent)) == 2, "its transparency is decoded, its thumbnail is not"
    assert decoded_megapixels(heif(items, [(b"dimg", 1, (2,) * 1000)])) > 50


def test_parts_of_parts_multiply() -> None:
    items = dict.fromkeys(range(1, 8), b"iovl") | {8: b"hvc1"}
    chain = [(b"dimg", number, (number + 1,) * 10) for number in range(1, 8)]
    assert decoded_megapixels(heif(items, chain), 10**9) == 10**7


@pytest.mark.parametrize(
    "references",
    [
        [(b"dimg", number, (number + 1,)) for number in range(1, 12)],
        [(b"dimg", 1, (2,)), (b"dimg", 2, (1,))],
        [(b"dimg", 1, (1,))],
    ],
    ids=["a long chain", "a circle", "itself"],
)
def test_parts_that_are_nested_too_deep_cost_too_much(references: list[tuple[bytes, int, tuple[int, ...]]]) -> None:
    assert decoded_megapixels(heif(dict.fromkeys(range(1, 13), b"iovl"), references)) > 50


def test_pictures_of_their_own_are_told_from_parts_thumbnails_and_metadata() -> None:
    items = {1: b"grid", 2: b"hvc1", 3: b"hvc1", 4: b"hvc1", 5: b"Exif", 6: b"mime", 7: b"tmap"}
    belonging = [(b"dimg", 1, (2,)), (b"thmb", 3, (1,)), (b"auxl", 4, (1,)), (b"cdsc", 5, (1,))]
    assert read_iso_media(heif(items, belonging)).further_pictures() == []
    assert read_iso_media(heif(items, belonging[:2])).further_pictures() == [4]
    assert read_iso_media(heif(items, belonging, primary=3)).further_pictures() == [1]
    assert read_iso_media(heif({1: b"hvc1", 2: b"hvc1"}, primary=99)).further_pictures() == [2]


@pytest.mark.parametrize(
    ("count", "message"),
    [(100_000, ""), (100_001, "The image file has more than 100,000 references, which is the limit.")],
)
def test_references_have_a_limit(count: int, message: str) -> None:
    full, rest = divmod(count - 2, 50_000)  # the property of one item makes two references
    lists = [(b"dimg", 1, (2,) * 50_000)] * full + [(b"dimg", 1, (2,) * rest)]
    data = heif({1: b"grid"}, lists)
    if not message:
        assert len(read_iso_media(data).references) == len(lists)
        return
    with pytest.raises(DecodeError) as caught:
        read_iso_media(data)
    assert (caught.value.status, caught.value.message) == (ImageStatus.LIMIT, message)


def test_lists_that_claim_more_than_there_is_end_with_their_box() -> None:
    cut = box(b"iref", bytes(4), box(b"dimg", struct.pack(">HHH", 1, 60_000, 2)))
    data = box(b"ftyp", b"heic", bytes(4)) + box(b"meta", bytes(4), cut)
    assert [one.to for one in read_iso_media(data).references] == [(2,)]


@pytest.mark.parametrize("wide", [False, True], ids=["16 bits", "32 bits"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_bytes_of_all_items_are_added_up(wide: bool, pieces: int) -> None:
    number = ">I" if wide else ">H"
    one = struct.pack(">II", 20, 30)
    method_and_source = bytes(4 if wide else 2)
    item = struct.pack(number, 1) + method_and_source + struct.pack(">IH", 100, pieces) + one * pieces
    header = bytes([2 if wide else 0, 0, 0, 0]) + b"\x44\x40" + struct.pack(number, 2)
    located = box(b"meta", bytes(4), box(b"iloc", header, item * 2))
    media = read_iso_media(located + bytes(1000))
    assert (media.stored_bytes, media.stored_end) == (2 * pieces * 30, 150)
    media = read_iso_media(located)
    there = min(30, max(0, len(located) - 120))
    assert (media.stored_bytes, media.stored_end) == (2 * pieces * there, 150)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.sampled_from(
        [
            heif({1: b"grid", 2: b"hvc1"}, [(b"dimg", 1, (2, 2))]),
            phone_files.heic(image_files.picture(size=(150, 100)), tile_size=64, thumbnails=[64]),
        ]
    ),
    changes=st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=8),
    length=st.integers(0, 2000),
)
def test_damaged_boxes_never_raise_anything_but_a_limit(
    seed: bytes, changes: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(seed[:length])
    for position, value in changes:
        if position < len(data):
            data[position] = value
    try:
        media = read_iso_media(bytes(data))
    except DecodeError as error:
        assert error.status is ImageStatus.LIMIT  # noqa: PT017
    else:
        assert media.decoded_pixels(bytes(data), 10**6) >= 0
        media.further_pictures()
