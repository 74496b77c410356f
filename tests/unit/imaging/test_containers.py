"""HEIC, AVIF and BigTIFF files as other encoders write them: read, or refused with the reason."""

import io
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from PIL import Image, TiffImagePlugin, features

from preprocess_ensemble.contract import ImageStatus
from preprocess_ensemble.imaging.containers.iso_media import IsoMedia, boxes, file_boxes
from preprocess_ensemble.imaging.containers.read import read
from preprocess_ensemble.imaging.decode import decode
from preprocess_ensemble.imaging.formats import identify, open_image
from tests.fixtures.images import image_files, phone_files
from tests.fixtures.images.embedded_files import box, with_meta
from tests.fixtures.images.good_files import refused

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot read AVIF")


def with_box(data: bytes, name: bytes, make: Callable[[bytes], bytes]) -> bytes:
    """Replace a box of the file's ``meta`` box by what ``make`` makes of its content."""
    return with_meta(data, lambda found, content: make(content) if found == name else box(found, content))


def a_box_for_each_item(content: bytes) -> bytes:
    """List the properties of each item in a box of its own."""
    properties, associations = boxes(content, 0, len(content))
    lists, position = [], associations.start + 8
    while position < associations.stop:
        end = position + 3 + content[position + 2]
        lists.append(box(b"ipma", bytes(4), struct.pack(">I", 1), content[position:end]))
        position = end
    return box(b"iprp", box(b"ipco", content[properties.start : properties.stop]), *lists)


def without_the_size_of_transparency(content: bytes) -> bytes:
    """Leave out the size of the second item, which its list of properties begins with."""
    properties, associations = boxes(content, 0, len(content))
    first = associations.start + 8
    second = first + 3 + content[first + 2]
    assert content[second : second + 4] == b"\0\2\4\1"
    listed = content[associations.start : second] + b"\0\2\3" + content[second + 4 : associations.stop]
    return box(b"iprp", content[: properties.stop], box(b"ipma", listed))


def a_pyramid(content: bytes) -> bytes:
    return box(b"iprp", content) + box(b"grpl", box(b"pymd", bytes(4), struct.pack(">IIIHH", 9, 1, 1, 64, 64)))


def with_tone_map(data: bytes) -> bytes:
    """An AVIF whose second item says, in one zero byte, how to combine the first item with the third."""
    start, stop = IsoMedia(data).extents[1][0]
    picture = (start, stop - start)

    def change(name: bytes, content: bytes) -> bytes:
        match name:
            case b"iinf":
                entries = ((2, b"tmap"), (3, b"av01"))
                more = (box(b"infe", b"\2\0\0\0", struct.pack(">HH", item, 0), kind, b"\0") for item, kind in entries)
                return box(name, content[:4], struct.pack(">H", 3), content[6:], *more)
            case b"iloc":
                return located([picture, (len(data) + 8, 1), picture])
            case b"iprp":
                properties, associations = boxes(content, 0, len(content))
                own = content[associations.start + 10 : associations.stop]
                listed = b"".join(struct.pack(">H", item) + own for item in (1, 2, 3))
                new = box(b"ipma", bytes(4), struct.pack(">I", 3), listed)
                refers = box(b"iref", bytes(4), box(b"dimg", struct.pack(">HHHH", 2, 2, 1, 3)))
                group = box(b"grpl", box(b"altr", bytes(4), struct.pack(">IIII", 9, 2, 2, 1)))
                return box(name, box(b"ipco", content[properties.start : properties.stop]), new) + refers + group
        return box(name, content)

    return with_meta(data.replace(b"miaf", b"tmap", 1) + box(b"free", b"\0"), change)


def avif(mode: str = "RGB", **options: Any) -> bytes:
    picture = image_files.picture()
    if mode == "RGBA":
        picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    return image_files.encoded(picture, "AVIF", speed=10, **options)


def with_matrix(number: int) -> bytes:
    data = avif()
    matrix = data.index(b"nclx") + 8
    return data[:matrix] + bytes([0, number]) + data[matrix + 2 :]


def with_optional_rotation(data: bytes) -> bytes:
    (place,) = (place for place, one in IsoMedia(data).listed_properties(1) if one.name == b"irot")
    return data[: place.start] + bytes([data[place.start] & 0x7F]) + data[place.stop :]


@needs_avif
@pytest.mark.parametrize(
    ("make", "make_plain", "says"),
    [
        *(
            (lambda name=name, make=make: with_box(avif("RGBA"), name, make), lambda: avif("RGBA"), "cannot identify")
            for name, make in (
                (b"iprp", a_box_for_each_item), (b"iprp", without_the_size_of_transparency),
                (b"iref", lambda content: box(b"iref", content[:-2] + b"\0\0")), (b"iprp", a_pyramid),
            )
        ),
        (lambda: with_optional_rotation(avif(exif=phone_files.exif(6))), lambda: avif(exif=phone_files.exif(6)),
         "cannot identify"),
        (lambda: with_tone_map(avif()), avif, "tone mapped"),
        (lambda: with_matrix(10), lambda: with_matrix(9), "YUV"),
    ],
    ids=["lists", "size", "item 0", "pyramid", "rotation", "tone map", "constant luminance"],
)  # fmt: skip
def test_an_avif_is_read_as_encoders_write_it(
    make: Callable[[], bytes], make_plain: Callable[[], bytes], says: str
) -> None:
    data, plain = make(), make_plain()
    with pytest.raises(Exception, match=says):
        Image.open(io.BytesIO(data)).load()
    assert decode(data).tobytes() == decode(plain).tobytes() != decode(image_files.file("AVIF")).tobytes()
    layout, same = read(data).layout, read(plain).layout
    assert layout is not None
    assert same is not None
    assert layout.has_alpha == same.has_alpha
    with open_image(data) as image, open_image(plain) as other:
        assert image.getexif().get(0x0110) == other.getexif().get(0x0110)


def test_nothing_is_said_of_a_picture_in_the_short_form() -> None:
    data = box(b"ftyp", b"mif3heic") + box(b"mini", bytes(8))
    image_format = identify(data)
    assert image_format is not None
    assert (image_format.name, read(data).layout) == ("HEIC", None)


@needs_avif
def test_an_avif_shows_only_what_its_crop_leaves() -> None:
    data = avif()
    crop = box(b"clap", struct.pack(">IIIIiIiI", 40, 1, 20, 1, -2, 1, 6, 2))  # its middle lies 2 left and 3 below

    def cropped(content: bytes) -> bytes:
        properties, associations = boxes(content, 0, len(content))
        listed = content[properties.start : properties.stop]
        number = sum(1 for _ in boxes(listed, 0, len(listed))) + 1
        own = bytearray(content[associations.start : associations.stop])
        own[10] += 1
        return box(b"iprp", box(b"ipco", listed, crop), box(b"ipma", bytes(own), bytes([0x80 | number])))

    shown, whole = decode(with_box(data, b"iprp", cropped)), decode(data)
    assert shown.tobytes() == whole.crop((10, 17, 50, 37)).tobytes()


def with_items(count: int) -> bytes:
    """A HEIC of this many items, most of them of 4 bytes of text."""
    data = phone_files.heic()
    more = range(1000, 1000 + count - len(IsoMedia(data).items))

    def change(name: bytes, content: bytes) -> bytes:
        (entries,) = struct.unpack_from(">H", content, 6 if name == b"iloc" else 4)
        total = struct.pack(">H", entries + len(more))
        if name == b"iinf":
            texts = [box(b"infe", b"\2\0\0\0", struct.pack(">HH", item, 0), b"mime\0text/plain\0") for item in more]
            return box(name, content[:4], total, content[6:], *texts)
        if name == b"iloc":
            places = [struct.pack(">HHIHII", item, 0, 0, 1, 0, 4) for item in more]
            return box(name, content[:6], total, content[8:], *places)
        return box(name, content)

    return with_meta(data, change)


def test_a_heic_has_at_most_as_many_items_as_its_decoder_reads() -> None:
    assert decode(with_items(1000)).size == (64, 48)
    error = refused(with_items(1001))
    message = "The HEIC file has more than 1,000 items, such as tiles, which is the limit."
    assert (error.status, error.message) == (ImageStatus.LIMIT, message)


def located(places: list[tuple[int, int]]) -> bytes:
    items = [struct.pack(">HHHII", number, 0, 1, *place) for number, place in enumerate(places, 1)]
    return box(b"iloc", bytes(4), b"\x44\0", struct.pack(">H", len(items)), *items)


@needs_avif
@pytest.mark.parametrize(("shares", "padding", "is_refused"), [(4, 2**20, False), (6, 2**20, True), (50, 0, False)])
def test_items_may_share_what_costs_little_or_what_layers_share(shares: int, padding: int, is_refused: bool) -> None:
    data = avif() + box(b"free", bytes(padding))
    (stored,) = (one for one in file_boxes(data) if one.name == b"mdat")
    places = [(stored.start, stored.stop - stored.start)] + [(0, len(data))] * (shares - 1)
    shared = with_box(data, b"iloc", lambda _: located(places))
    if is_refused:
        error = refused(shared)
        assert (error.status, "bytes in its parts together" in error.message) == (ImageStatus.LIMIT, True)
    else:
        assert decode(shared).tobytes() == decode(data).tobytes()


PIXELS = bytes(range(0, 240, 5))  # 4 x 4 pixels of RGB
NONE, DEFLATE = 1, 8
SHORT, LONG8 = 3, 16


def big_tiff(order: str, compression: int, more: Sequence[tuple[int, int]] = (), pages: int = 1) -> bytes:
    """A file of pages with the same pixels; ``more`` are tags with one number each."""
    pixels = PIXELS if compression == NONE else zlib.compress(PIXELS)
    entries = [
        (256, SHORT, [4]), (257, SHORT, [4]), (258, SHORT, [8, 8, 8]), (259, SHORT, [compression]), (262, SHORT, [2]),
        (273, LONG8, [16]), (277, SHORT, [3]), (278, SHORT, [4]), (279, LONG8, [len(pixels)]),
        *[(tag, SHORT, [value]) for tag, value in more],
    ]  # fmt: skip
    directory = struct.pack(order + "Q", len(entries))
    for tag, kind, values in sorted(entries):
        content = struct.pack(f"{order}{len(values)}{'H' if kind == SHORT else 'Q'}", *values)
        directory += struct.pack(order + "HHQ8s", tag, kind, len(values), content)
    first = 16 + len(pixels)
    data = (b"II" if order == "<" else b"MM") + struct.pack(order + "HHHQ", 43, 8, 0, first) + pixels
    for page in range(1, pages + 1):
        following = first + page * (len(directory) + 8) if page < pages else 0
        data += directory + struct.pack(order + "Q", following)
    return data


every_order = pytest.mark.parametrize("order", "<>")


@every_order
@pytest.mark.parametrize("compression", [NONE, DEFLATE])
def test_a_big_tiff_is_read_in_both_byte_orders_and_its_tags_are_its_exif(order: str, compression: int) -> None:
    data, turned = (big_tiff(order, compression, more) for more in ([], [(274, 3)]))
    assert decode(data).tobytes() == PIXELS
    assert refused(data[:100]).status is ImageStatus.TRUNCATED
    assert decode(turned).tobytes() == decode(data).rotate(180).tobytes()
    with open_image(turned) as image:
        assert image.getexif()[274] == 3


@every_order
def test_the_pages_of_a_big_tiff_are_counted_and_found(order: str) -> None:
    data = big_tiff(order, NONE, pages=3)
    container = read(data + b"?")
    assert container.layout is not None
    assert (container.end, container.layout.pages, container.layout.depth) == (len(data), 3, 8)
    with open_image(data) as image:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        assert image.n_frames == 3
        for page in (2, 0):
            image.seek(page)
            assert image.tobytes() == PIXELS
    assert "more than 2 frames" in refused(data, max_frames=2).message


@pytest.mark.parametrize("offset", [2**63, 2**64 - 1, 8])
def test_a_big_tiff_whose_directory_lies_nowhere_is_refused(offset: int) -> None:
    data = b"MM" + struct.pack(">HHHQ", 43, 8, 0, offset) + bytes(100)
    assert refused(data).status in (ImageStatus.CORRUPT, ImageStatus.TRUNCATED)
