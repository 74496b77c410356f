"""Reads XMP packets in image files and sidecars, and writes sidecars.

Any program may have written a packet, so it is parsed without entities, external references or a document type, and
only up to a fixed size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from xml.etree.ElementTree import Element

_MOST_BYTES: Final = 2**20
"""Packets of photos have a few kilobytes; those with the history of an editor a few hundred."""

_NAMESPACES: Final = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "x": "adobe:ns:meta/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
}
_PREFIXES: Final = {uri: prefix for prefix, uri in _NAMESPACES.items() if prefix not in ("rdf", "x")}
_LANGUAGE: Final = "{http://www.w3.org/XML/1998/namespace}lang"


class XmpError(Exception):
    """A packet cannot be read."""


def read_xmp(packet: bytes) -> dict[str, tuple[str, ...]]:
    """Return the properties of a packet: ``"dc:subject"`` -> its items, or its only text.

    It returns only text in the namespaces of Dublin Core, EXIF, Photoshop and XMP itself. If a text has several
    languages, the default one comes first. Raises XmpError for a packet that is too large or is not XMP.
    """
    from defusedxml.ElementTree import fromstring

    if len(packet) > _MOST_BYTES:
        raise XmpError(f"the packet has {len(packet):,} bytes; the limit is {_MOST_BYTES:,}")
    try:
        root = fromstring(packet.strip(b"\0 \t\r\n"), forbid_dtd=True)
    except (SyntaxError, ValueError, LookupError) as error:  # ParseError, the errors of defusedxml, unknown encodings
        raise XmpError(f"the packet is not XML that can be read: {error}") from None
    found: dict[str, tuple[str, ...]] = {}
    for rdf in root.iter(_qualified("rdf:RDF")):
        for description in rdf.findall(_qualified("rdf:Description")):
            for name, text in description.attrib.items():
                _take(found, name, (text,))
            for element in description:
                _take(found, element.tag, _items(element))
    return found


def write_xmp(properties: Mapping[str, str | Sequence[str]]) -> bytes:
    """Return a packet with ``properties``: a sequence becomes a list, a text of ``dc`` one in the default language."""
    from xml.etree.ElementTree import Element, SubElement, indent, register_namespace, tostring

    for prefix, uri in _NAMESPACES.items():
        register_namespace(prefix, uri)
    root = Element(_qualified("x:xmpmeta"))
    rdf = SubElement(root, _qualified("rdf:RDF"))
    description = SubElement(rdf, _qualified("rdf:Description"), {_qualified("rdf:about"): ""})
    for name, value in sorted(properties.items()):
        element = SubElement(description, _qualified(name))
        if not isinstance(value, str):
            bag = SubElement(element, _qualified("rdf:Bag"))
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


def _take(found: dict[str, tuple[str, ...]], name: str, items: tuple[str, ...]) -> None:
    uri, _, local = name.removeprefix("{").partition("}")
    if uri in _PREFIXES and items:
        found.setdefault(f"{_PREFIXES[uri]}:{local}", items)


def _items(element: Element) -> tuple[str, ...]:
    """Return the items of a list, or the text of a property."""
    items = [item for container in element for item in container.findall(_qualified("rdf:li"))]
    if not items:
        return (element.text,) if element.text else ()
    items.sort(key=lambda item: item.get(_LANGUAGE, "x-default") != "x-default")
    return tuple(item.text for item in items if item.text)


def _qualified(name: str) -> str:
    prefix, _, local = name.partition(":")
    return f"{{{_NAMESPACES[prefix]}}}{local}"
