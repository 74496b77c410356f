"""Partitions name their images, are the same in the next run, and refuse what cannot be read."""

import io
import pickle
import tarfile
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clip_client.distributed import (
    DistributedError,
    Partition,
    image_files,
    images_below,
    parquet_images,
    webdataset_images,
)
from clip_client.distributed.storage import Location

KEYS = "s3://key:secret@bucket/x?region=a&nonsense=1"  # no message may show them


def content(partitions: list[Partition]) -> dict[str, bytes]:
    """Name -> bytes of every image, read as a worker does: from a copy of the partition."""
    copies: list[Partition] = pickle.loads(pickle.dumps(partitions))
    images = [image for partition in copies for image in partition.images()]
    found = {image.file.path: image.read()[0] for image in images}
    assert len(found) == len(images)
    return found


@pytest.fixture
def bucket() -> Location:
    """A prefix in fsspec's memory, which stands for an object store."""
    place = Location.of(f"memory://{uuid.uuid4().hex}")
    place.filesystem.create_dir(place.path, recursive=True)
    return place


def put(place: Location, data: bytes) -> None:
    with place.filesystem.open_output_stream(place.path) as file:
        file.write(data)


def tar_of(**files: bytes) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


def test_photos_below_a_prefix_are_named_by_their_urls(bucket: Location) -> None:
    for name in ("a.jpg", "b.PNG", "notes.txt"):
        put(bucket / name, name.encode())
    assert content(images_below(str(bucket))) == {f"{bucket}/a.jpg": b"a.jpg", f"{bucket}/b.PNG": b"b.PNG"}


def test_photos_below_a_folder_are_those_of_the_local_walk(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("sub/a.jpg", ".hidden.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(name.encode())
    assert content(images_below(tmp_path)) == {str(tmp_path / "sub/a.jpg"): b"sub/a.jpg"}


def test_an_id_lasts_until_a_file_changes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number:03}.jpg" for number in range(250)]
    for path in paths:
        path.write_bytes(b"x")
    before = [partition.id for partition in image_files(paths)]
    assert len(set(before)) == 3  # of 100 files
    assert [partition.id for partition in image_files(reversed(paths))] == before
    paths[0].write_bytes(b"changed")
    after = [partition.id for partition in image_files(paths)]
    assert after[0] != before[0]
    assert after[1:] == before[1:]


def test_rows_of_parquet_are_cut_at_row_groups(tmp_path: Path) -> None:
    file = tmp_path / "images.parquet"
    pq.write_table(pa.table({"bytes": [b"%d" % row for row in range(25_000)]}), file, row_group_size=3000)
    partitions = parquet_images(tmp_path)
    assert [partition.name for partition in partitions] == [
        f"{file}, rows {rows}" for rows in ("0 to 11,999", "12,000 to 23,999", "24,000 to 24,999")
    ]
    assert content(partitions) == {f"{file}#{row}": b"%d" % row for row in range(25_000)}


def test_a_column_may_be_a_field_a_path_or_a_url(bucket: Location, tmp_path: Path) -> None:
    put(bucket / "a.jpg", b"remote")
    (tmp_path / "b.jpg").write_bytes(b"local")
    struct = pa.array([{"bytes": b"one", "path": "x"}, {"bytes": b"two", "path": "y"}])
    urls = [f"{bucket}/a.jpg", str(tmp_path / "b.jpg")]
    pq.write_table(pa.table({"image": struct, "image.path": urls, "key": ["k1", "k2"]}), tmp_path / "images.parquet")
    by_field = parquet_images(tmp_path / "images.parquet", column="image.bytes", path_column="key")
    assert content(by_field) == {"k1": b"one", "k2": b"two"}
    assert content(parquet_images(tmp_path / "images.parquet", column="image.path")) == {
        urls[0]: b"remote",
        urls[1]: b"local",
    }


def test_an_address_that_makes_no_sense_costs_its_own_row_only(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"good")
    pq.write_table(pa.table({"url": ["nonsense://bucket/a.jpg", str(tmp_path / "a.jpg")]}), tmp_path / "urls.parquet")
    (partition,) = parquet_images(tmp_path / "urls.parquet", column="url")
    bad, good = partition.images()
    assert good.read()[0] == b"good"
    with pytest.raises(DistributedError, match=r"nonsense://bucket/a\.jpg cannot be opened"):
        bad.read()


@pytest.mark.parametrize(
    ("find", "reason"),
    [
        (partial(parquet_images, column="jpg"), r"images\.parquet has no column 'jpg'; it has bytes, number, image"),
        (partial(parquet_images, column="number"), "the column 'number' of .*images.parquet holds int64; it must"),
        (partial(parquet_images, column="image.jpg"), "no column 'image.jpg'; it has bytes, number, image.bytes"),
        (lambda folder: parquet_images(folder / "none"), "there is no file or folder .*/none"),
        (lambda _: parquet_images("nonsense://bucket/x"), "nonsense://bucket/x cannot be opened: .*nonsense"),
        (lambda _: parquet_images(KEYS), "^s3://bucket/x.* cannot be opened: Unexpected .* 'nonsense'"),
        (images_below, "there is no photo below"),
        (webdataset_images, r"there is no file with the ending \.tar or"),
    ],
)
def test_what_has_no_images_is_named(tmp_path: Path, find: Callable[[Path], object], reason: str) -> None:
    table = pa.table({"bytes": [b""], "number": [1], "image": [{"bytes": b""}]})
    pq.write_table(table, tmp_path / "images.parquet")
    with pytest.raises(DistributedError, match=reason):
        find(tmp_path)


def test_photos_in_a_tar_are_named_after_it(tmp_path: Path) -> None:
    names = ("1.jpg", "1.json", "sub/2.png")
    (tmp_path / "000.tar").write_bytes(tar_of(**{name: name.encode() for name in names}))
    (partition,) = webdataset_images(tmp_path)
    assert partition.name == f"{tmp_path}/000.tar"
    assert content([partition]) == {f"{tmp_path}/000.tar/{name}": name.encode() for name in ("1.jpg", "sub/2.png")}


@pytest.mark.parametrize("keep", [0, 700, 1000])
def test_a_damaged_tar_is_named_and_gives_no_half_image(tmp_path: Path, keep: int) -> None:
    (tmp_path / "000.tar").write_bytes(tar_of(**{"1.jpg": 600 * b"x"})[:keep])
    (partition,) = webdataset_images(tmp_path)
    with pytest.raises(DistributedError, match=r"000\.tar cannot be read as a tar file"):
        content([partition])
