"""Facts about a photo in EXIF, IPTC, XMP, text and attributes of its file, and the text of sidecars."""
