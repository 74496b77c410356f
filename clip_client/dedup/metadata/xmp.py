"""Reads XMP packets, which may be malicious, without entities, references or a document type, and writes sidecars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias
from xml.etree.ElementTree import Element, SubElement, indent, register_namespace, tostring

_MOST_BYTES: Final = 2**20
"""Packets of photos have a few kilobytes; those with the history of an editor a few hundred."""
_LONGEST_PATH: Final = 1000
"""Characters; what lies deeper in a structure was nested for an attack."""
_URIS: Final = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "iptcCore": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "x": "adobe:ns:meta/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
}
_NAMESPACES: Final = {uri: prefix for prefix, uri in _URIS.items() if prefix != "rdf"} | {
    "http://ns.adobe.com/camera-raw-settings/1.0/": "crs",
    "http://ns.adobe.com/camera-raw-saved-settings/1.0/": "crs",
    "http://darktable.sf.net/": "darktable",
    "http://ns.adobe.com/tiff/1.0/": "tiff",
    "http://cipa.jp/exif/1.0/": "exifEX",
    "http://cipa.jp/exif/1.0/exifEX": "exifEX",
    "http://ns.adobe.com/exif/1.0/aux/": "aux",
    "http://ns.adobe.com/lightroom/1.0/": "lr",
    "http://www.metadataworkinggroup.com/schemas/regions/": "mwg-rs",
    "http://ns.microsoft.com/photo/1.2/": "MP",
    "http://ns.microsoft.com/photo/1.0/": "MicrosoftPhoto",
    "http://ns.microsoft.com/photo/1.0": "MicrosoftPhoto",
    "http://iptc.org/std/Iptc4xmpExt/2008-02-29/": "iptcExt",
    "http://ns.adobe.com/xap/1.0/rights/": "xmpRights",
    "http://www.digikam.org/ns/1.0/": "digiKam",
    "http://ns.iview-multimedia.com/mediapro/1.0/": "mediapro",
    "http://ns.adobe.com/pdf/1.3/": "pdf",
    "http://ns.acdsee.com/iptc/1.0/": "acdsee",
    "http://ns.acdsee.com/regions/": "acdsee",
}
_SILENT: Final = (
    _URIS["rdf"],
    *(f"http://ns.adobe.com/xap/1.0/{name}/" for name in ("mm", "g/img", "t/pg")),
    *(f"http://ns.adobe.com/{name}/" for name in ("xmp/note", "illustrator/1.0", "hdr-gain-map/1.0")),
    *(f"http://ns.apple.com/{name}/1.0/" for name in ("HDRGainMap", "pixeldatainfo")),
    *(f"http://ns.google.com/photos/1.0/{name}/" for name in "camera container depthmap image audio".split()),
    "http://ns.google.com/photos/1.0/container/item/",
    "http://www.gimp.org/xmp/",
)
"""Namespaces of histories, ids, versions of programs, and other parts of the file."""
_XML: Final = "http://www.w3.org/XML/1998/namespace"
_LANGUAGE: Final = f"{{{_XML}}}lang"

Item: TypeAlias = dict[str, list[str]]
"""Item of a property: path in a structure, such as ``"Area/x"``, -> texts; the path of a plain text is empty."""


class XmpError(Exception):
    """A packet cannot be read."""


def read_xmp(packet: bytes) -> dict[str, list[Item]]:
    """Return the properties of a packet that say something: ``"dc:subject"`` -> its items, the default language first.

    An unknown namespace has its URI in place of a prefix. Raises XmpError for a packet that is too large or not XML.
    """
    from defusedxml.ElementTree import fromstring

    if len(packet) > _MOST_BYTES:
        raise XmpError(f"the packet has {len(packet):,} bytes; the limit is {_MOST_BYTES:,}")
    try:
        root = fromstring(packet.strip(b"\0 \t\r\n"), forbid_dtd=True)
    except (SyntaxError, ValueError, LookupError) as error:  # ParseError, the errors of defusedxml, unknown encodings
        raise XmpError(f"the packet is not XML that can be read: {error}") from None
    found: dict[str, list[Item]] = {}
    # Some programs write a type in place of rdf:Description.
    for description in (node for rdf in root.iter(_qualified("rdf:RDF")) for node in rdf):
        for name, text in description.attrib.items():
            found.setdefault(name, []).append({"": [text]})
        for element in description:
            found.setdefault(element.tag, []).extend(_items(element))
    named: dict[str, list[Item]] = {}
    for name, items in found.items():
        uri, local = _split(name)
        if items and uri and uri not in _SILENT:
            named.setdefault(f"{_NAMESPACES.get(uri, uri)}:{local}", []).extend(items)
    return named


def texts_of(items: Iterable[Item]) -> list[str]:
    return [text for item in items for text in item.get("", ())]


def write_xmp(properties: Mapping[str, str | Sequence[str]]) -> bytes:
    """Return a packet with ``properties``. A sequence becomes a list; a ``dc`` text gets the default language."""
    for prefix, uri in _URIS.items():
        register_namespace(prefix, uri)
    root = Element(_qualified("x:xmpmeta"))
    rdf = SubElement(root, _qualified("rdf:RDF"))
    description = SubElement(rdf, _qualified("rdf:Description"), {_qualified("rdf:about"): ""})
    for name, value in sorted(properties.items()):
        element = SubElement(description, _qualified(name))
        if not isinstance(value, str):
            # Only the first creator is the main one: XMP specification, part 1, section 8.3.
            bag = SubElement(element, _qualified("rdf:Seq" if name == "dc:creator" else "rdf:Bag"))
            for item in value:
                SubElement(bag, _qualified("rdf:li")).text = item
        elif name.startswith("dc:"):
            alternatives = SubElement(element, _qualified("rdf:Alt"))
            SubElement(alternatives, _qualified("rdf:li"), {_LANGUAGE: "x-default"}).text = value
        else:
            element.text = value
    indent(root)
    packet: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return packet + b"\n"


def _items(element: Element) -> list[Item]:
    items = [item for container in element for item in container.findall(_qualified("rdf:li"))]
    items.sort(key=lambda item: item.get(_LANGUAGE, "x-default") != "x-default")
    read = []
    for item in items or [element]:
        texts: Item = {}
        for path, text in _texts(item):
            texts.setdefault(path, []).append(text)
        read += [texts] if texts else []
    return read


def _texts(item: Element) -> Iterator[tuple[str, str]]:
    waiting = [(item, "")]
    while waiting:
        element, path = waiting.pop()
        for name, text in element.attrib.items():
            uri, local = _split(name)
            # The only content among the attributes that RDF and XML define is an address.
            if uri not in (_URIS["rdf"], _XML) or local == "resource":
                yield "/".join(filter(None, (path, "" if local == "resource" else local))), text
        if element.text and (element.text.strip() or not len(element)):
            yield path, element.text
        for child in reversed(element) if len(path) < _LONGEST_PATH else ():
            uri, local = _split(child.tag)
            waiting.append((child, path if uri == _URIS["rdf"] else "/".join(filter(None, (path, local)))))


def _split(name: str) -> tuple[str, str]:
    uri, _, local = name.rpartition("}")
    return uri.removeprefix("{"), local


def _qualified(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{_URIS[prefix]}}}{local}"
