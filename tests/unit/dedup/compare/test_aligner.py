"""Aligning photos by their files and a store, and what the store keeps of one photo."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from unittest.mock import patch

import cv2
import numpy as np
import pytest
from PIL import Image

from clip_client.dedup import find_duplicates
from clip_client.dedup.compare.aligner import VERSIONS, Aligner, keep_small_picture, keypoints_in
from clip_client.dedup.compare.proofs import prove_again
from clip_client.dedup.describe.keypoints import Keypoints, extract_keypoints, opencv_for_many
from clip_client.dedup.features.preview import DecodedPhoto
from clip_client.dedup.judge.verdicts import with_verdicts
from clip_client.dedup.store.cache import Spool
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import EDITED, RE_ENCODED
from preprocess_ensemble.imaging import decode as decoding
from tests.fixtures.images.scenes import resized, scene
from tests.fixtures.members import photo


def content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_file_that_is_away_for_one_search_is_not_doubted_in_the_next(is_replaced: bool, tmp_path: Path) -> None:
    kept, copy, away = (tmp_path / name for name in ("kept.png", "copy.jpg", "away"))
    scene(0).save(kept)
    scene(0).save(copy, quality=90)
    photos = {content(path): photo(path) for path in (kept, copy)}
    first, second = photos
    with Store(tmp_path / "store") as store, Aligner(photos, store) as aligner:
        aligner.prepare([(first, second)], lambda *told: None)
        copy.rename(away)
        if is_replaced:
            scene(0).save(copy, quality=91)
        (absent,) = aligner.align(first, [second])
        away.replace(copy)
        (present,) = aligner.align(first, [second])
    assert absent is not None
    assert absent.doubts == ("one of the two files could not be read again",)
    assert present is not None
    assert present.doubts == ()


def test_an_alignment_tells_the_reverse_but_a_proof_does_not(tmp_path: Path) -> None:
    pictures = [scene(0, (600, 400)), scene(0, (600, 400)).crop((60, 40, 500, 360)), resized(scene(0, (600, 400)), 0.5)]
    photos = {}
    for number, picture in enumerate(pictures):
        picture.save(path := tmp_path / f"{number}.png")
        photos[content(path)] = photo(path)
    whole, crop, half = photos
    for kept, duplicate, aligned in ((whole, crop, 1), (crop, whole, 1), (whole, half, 2), (half, whole, 2)):
        with Store(tmp_path / f"{kept} {duplicate}") as store, Aligner(photos, store) as aligner:
            there, back = aligner.align(kept, [duplicate]), aligner.align(duplicate, [kept])
            assert aligner.work.aligned == aligned
        with Store(tmp_path / f"{kept} {duplicate} alone") as store, Aligner(photos, store) as aligner:
            assert aligner.align(duplicate, [kept]) == back
        assert there != back
        assert there != [None]


async def test_a_large_photo_is_decoded_once_before_it_is_proved(tmp_path: Path) -> None:
    """The features and the small picture are made of one decode; the proof reads the files once more by itself."""
    whole = scene(0, (2000, 1504))
    whole.save(tmp_path / "large.jpg", quality=95)
    resized(whole, 0.75).save(tmp_path / "copy.jpg", quality=60)
    with patch.object(decoding, "decode", wraps=decoding.decode) as decode:
        report = await find_duplicates(None, tmp_path)
    assert [group.tier for group in report.groups] == [RE_ENCODED]
    assert [call.kwargs.get("at_least") is None for call in decode.call_args_list] == [False, False]


async def test_neither_of_two_files_moves_for_the_other_if_each_stores_something_finer(tmp_path: Path) -> None:
    smooth = Image.fromarray(np.random.default_rng(3).integers(120, 136, (4, 5, 3), dtype=np.uint8)).resize((400, 304))
    picture = Image.merge("YCbCr", [scene(0, (400, 304)).convert("L"), *smooth.split()[1:]]).convert("RGB")
    files = [tmp_path / "colours.jpg", tmp_path / "steps.jpg"]
    for path, steps, sampling in zip(files, (3, 2), (0, 2), strict=True):
        picture.save(path, qtables=[[steps] * 64, [4] * 64], subsampling=sampling)
    report = with_verdicts(await find_duplicates(None, tmp_path), [tmp_path])
    (group,) = report.groups
    assert group.members[1].verdict.reason == "Which of the two shows more cannot be told, so neither moves unasked."
    assert [prove_again(str(one), str(other)) for one, other in (files, files[::-1])] == ["", ""]


def test_the_small_picture_is_the_same_from_whichever_decode_and_kept_of_large_photos_only(tmp_path: Path) -> None:
    photos = {}
    for name, size, profile in (
        ("plain", (2000, 1504), b""),
        ("profile", (1200, 1032), b"not one"),
        ("small", (500, 400), b""),
        ("too small for the alignment once it is scaled", (2000, 960), b""),
    ):
        file = io.BytesIO()
        scene(0, size).save(file, "JPEG", quality=80, icc_profile=profile)
        photos[name] = file.getvalue()
    with Spool(tmp_path) as spool:
        for name, data in photos.items():
            picture = decoding.decode(data, at_least=(471, 471))
            before = picture.tobytes()
            keep_small_picture(spool, name, DecodedPhoto(data, picture, (471, 471)))
            assert picture.tobytes() == before
        assert sorted(spool) == ["plain", "profile"]
        for name, row in spool.items():
            own = keypoints_in(photos[name])
            assert own is not None
            assert own.to_bytes() == row


def test_what_other_versions_made_is_removed_and_refusals_are_kept(tmp_path: Path) -> None:
    one, other, tiny = scene(0, (600, 400)), scene(1, (600, 400)), scene(0, (60, 40))
    photos = {}
    for number, picture in enumerate((one, one.rotate(90, expand=True), other, tiny)):
        picture.save(path := tmp_path / f"{number}.png")
        photos[content(path)] = photo(path)
    kept, *others = photos
    with Store(tmp_path / "store") as store:
        store.cache.blob_tables("sift-4")[0].put([("ab", b"of an earlier version")])
    counts, found, reasons = [], [], []
    for _ in range(2):
        with Store(tmp_path / "store") as store, Aligner(photos, store) as aligner:
            aligner.prepare([(kept, each) for each in others], lambda *told: None)
            found.append(aligner.align(kept, others))
            counts.append((aligner.work.keypoints, aligner.work.aligned))
            reasons.append(aligner.reasons)
    assert [one and one.tier for one in found[0]] == [EDITED, None, None], "one of two turned photos lies on its side"
    assert found[0] == found[1]
    assert reasons[0] == reasons[1] == {others[-1]: "It has fewer than 80 pixels on one side."}
    assert counts == [(4, 3), (0, 0)]
    with Store(tmp_path / "store") as store:
        assert store.cache.other_versions(*VERSIONS) == []
        assert store.cache.other_versions() == sorted(VERSIONS[:2]), "no thumbnail was needed"


def test_other_bytes_are_refused() -> None:
    data = extract_keypoints(scene(1), (300, 200)).to_bytes()
    one_bit = data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]
    for damaged in (b"PK\x03\x04 but not really", data[:-1], one_bit, b""):
        with pytest.raises(ValueError, match="not keypoints"):
            Keypoints.from_bytes(damaged)


def test_opencv_uses_one_thread_inside_and_its_own_number_outside() -> None:
    before = cv2.getNumThreads()
    with opencv_for_many():
        assert cv2.getNumThreads() == 1
    assert cv2.getNumThreads() == before
