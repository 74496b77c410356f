"""What a file says about its photo: facts in EXIF, IPTC, XMP, text and attributes, and the text of sidecars."""
