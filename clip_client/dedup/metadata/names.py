"""Names of the fields of EXIF, IPTC, XMP, PNG text and extended attributes, and those fields that say nothing.

Fields of one name are one fact, by the Metadata Working Group's guidelines of 2010 (sections 4 and 5) and digiKam.
"""

from __future__ import annotations

import itertools
import re
from typing import Final

NAMES: Final = {
    "date": ("DateTimeOriginal", "photoshop:DateCreated", "iptc:55", "png:Creation_Time"),
    "GPS position": ("GPSLatitude",),
    "rating": ("xmp:Rating", "Rating"),
    "keywords": ("dc:subject", "iptc:25", "XPKeywords"),
    "title": ("dc:title", "iptc:5", "XPTitle", "png:Title"),
    "caption": ("dc:description", "iptc:120", "ImageDescription", "XPComment", "png:Description"),
    "hierarchical keywords": (
        "lr:hierarchicalSubject", "digiKam:TagsList", "mediapro:CatalogSets", "MicrosoftPhoto:LastKeywordXMP",
        "MicrosoftPhoto:LastKeywordIPTC", "acdsee:categories",
    ),
    "colour label": ("xmp:Label", "digiKam:ColorLabel", "photoshop:Urgency", "iptc:10"),
    "pick label": ("digiKam:PickLabel",),
    "people": ("iptcExt:PersonInImage", "mediapro:People"),
    "face regions": ("mwg-rs:Regions", "MP:RegionInfo", "iptcExt:ImageRegion", "acdsee:regions"),
    "creator": ("dc:creator", "iptc:80", "Artist", "XPAuthor", "png:Author"),
    "copyright": ("dc:rights", "iptc:116", "Copyright", "png:Copyright"),
    "comment": ("UserComment", "png:Comment", "png:comment", "file:comment"),
    "subject": ("XPSubject",),
    "headline": ("photoshop:Headline", "iptc:105"),
    "city": ("photoshop:City", "iptc:90"),
    "location": ("iptcCore:Location", "iptc:92"),
    "state": ("photoshop:State", "iptc:95"),
    "country": ("photoshop:Country", "iptc:101"),
    "country code": ("iptcCore:CountryCode", "iptc:100"),
    "credit": ("photoshop:Credit", "iptc:110"),
    "source": ("photoshop:Source", "iptc:115", "png:Source"),
    "instructions": ("photoshop:Instructions", "iptc:40"),
    "job reference": ("photoshop:TransmissionReference", "iptc:103"),
    "creator's title": ("photoshop:AuthorsPosition", "iptc:85"),
    "caption writer": ("photoshop:CaptionWriter", "iptc:122"),
    "category": ("photoshop:Category", "iptc:15"),
    "supplemental categories": ("photoshop:SupplementalCategories", "iptc:20"),
    "contact": ("iptcCore:CreatorContactInfo", "iptc:118"),
    "usage rights": ("xmpRights:Marked", "xmpRights:UsageTerms", "xmpRights:WebStatement", "xmpRights:Owner"),
    "prompt": ("png:prompt", "png:parameters", "png:workflow", "png:invokeai_metadata", "png:sd-metadata"),
    "camera": ("Make", "Model"),
    "lens": ("LensModel", "aux:Lens"),
    "lens data": ("LensSpecification", "aux:LensInfo"),
    "serial number": ("BodySerialNumber", "aux:SerialNumber"),
    "lens serial number": ("LensSerialNumber", "aux:LensSerialNumber"),
    "owner": ("CameraOwnerName", "aux:OwnerName"),
    "shot number": ("ImageNumber", "aux:ImageNumber"),
    "exposure time": ("ExposureTime",),
    "aperture": ("FNumber",),
    "ISO": (
        "ISOSpeedRatings", "PhotographicSensitivity", "ISOSpeed", "RecommendedExposureIndex",
        "StandardOutputSensitivity", "ExposureIndex",
    ),
    "exposure bias": ("ExposureBiasValue",),
    "35 mm focal length": ("FocalLengthIn35mmFilm",),
    "maker notes": ("MakerNote",),
    "fraction of a second": ("SubsecTimeOriginal",),
    "time zone": ("OffsetTimeOriginal",),
    "altitude": ("GPSAltitude",),
    "GPS time": ("GPSTimeStamp", "GPSDateStamp"),
    "compass direction": ("GPSImgDirection",),
    "date of digitisation": ("DateTimeDigitized", "iptc:62"),
    "Finder tags": ("attribute:com.apple.metadata:_kMDItemUserTags",),
    "Finder comment": ("attribute:com.apple.metadata:kMDItemFinderComment",),
    "download address": (
        "attribute:com.apple.metadata:kMDItemWhereFroms", "attribute:xdg.origin.url", "attribute:xdg.referrer.url",
    ),
    "file tags": ("attribute:xdg.tags",),
    "file comment": ("attribute:xdg.comment",),
    "file rating": ("attribute:baloo.rating",),
}  # fmt: skip
"""Name for people -> the fields that say it. Fields of EXIF have the names that Pillow gives them, those of ``tiff``,
``exif`` and ``exifEX`` in XMP as well; ``iptc`` has the number of a dataset in record 2."""
_NAME_OF: Final = {field: name for name, fields in NAMES.items() for field in fields}
_RANK: Final = {name: number for number, name in enumerate(NAMES)}
BY_PEOPLE: Final = frozenset(itertools.takewhile(lambda name: name != "prompt", NAMES)) | {
    "Finder label", "Finder tags", "Finder comment", "file tags", "file comment", "file rating",
}  # fmt: skip
"""The date and what people write about a photo. What follows in :data:`NAMES` differs between any two shots."""
SAVED: Final = {
    name: fields[:1]
    for name, fields in NAMES.items()
    if fields[0].startswith(("dc:", "iptcCore:", "photoshop:", "xmp:")) and name not in ("colour label", "contact")
} | {
    "date": ("exif:DateTimeOriginal", "photoshop:DateCreated"),
    "GPS position": ("exif:GPSLatitude", "exif:GPSLongitude", "exif:GPSVersionID"),
}
"""Name -> the properties of XMP that say it. Programs number labels differently, and a contact is a structure."""
LISTS: Final = frozenset({"keywords", "creator", "supplemental categories"})
"""Names in :data:`SAVED` that have any number of values; each of the others has one."""
UNNAMED: Final = "EXIF field 0x"
"""Beginning of the names of private fields of EXIF and TIFF, and of GeoTIFF."""
DEVELOPERS: Final = frozenset({"crs", "darktable"})
"""Prefixes of programs that develop RAW files: hundreds of fields, which people know by one name."""
_HOUSEKEEPING: Final = frozenset(
    # Sizes and layout of the stored picture, which another file of it has of its own.
    "PixelXDimension PixelYDimension ExifImageWidth ExifImageHeight ImageWidth ImageLength XResolution YResolution "
    "ResolutionUnit FocalPlaneXResolution FocalPlaneYResolution FocalPlaneResolutionUnit Orientation ColorSpace Gamma "
    "ComponentsConfiguration CompressedBitsPerPixel SubjectArea SubjectLocation CFAPattern IPTCNAA ImageResources "
    "InterColorProfile photoshop:ColorMode photoshop:ICCProfile dc:format ImageSourceData "
    # Offsets of other directories.
    "ExifOffset GPSInfo ExifInteroperabilityOffset InteroperabilityIndex RelatedSoundFile "
    # Versions and programs, and what these note about their work.
    "Software ProcessingSoftware ExifVersion FlashPixVersion FlashpixVersion TIFF/EPStandardID "
    "pdf:Producer pdf:PDFVersion pdf:Trapped "
    "xmp:CreatorTool png:Software CustomRendered ImageHistory SecurityClassification xmp:Nickname "
    "photoshop:LegacyIPTCDigest photoshop:EmbeddedXMPDigest photoshop:SidecarForExtension photoshop:History "
    "photoshop:DocumentAncestors NativeDigest digiKam:ImageHistory digiKam:Preview digiKam:ImageUniqueID "
    "digiKam:CaptionsAuthorNames digiKam:CaptionsDateTimeStamps ImageUniqueID xmp:Identifier "
    # Dates of changes; a date of capture that is nowhere else is the date of the photo.
    "DateTime SubsecTime SubsecTimeDigitized OffsetTime OffsetTimeDigitized TimeZoneOffset xmp:ModifyDate "
    "xmp:MetadataDate xmp:CreateDate MicrosoftPhoto:DateAcquired "
    # Thumbnails.
    "xmp:Thumbnails "
    # Another form of a field: the stars as a percentage, the exposure in APEX, parts of the position.
    "RatingPercent ShutterSpeedValue ApertureValue MicrosoftPhoto:Rating acdsee:rating GPSVersionID GPSLatitudeRef "
    "GPSLongitude GPSLongitudeRef GPSAltitudeRef GPSStatus GPSMeasureMode GPSDifferential iptc:60 iptc:63 "
    # IPTC: versions, program, file format, character set, and settings of the news wire.
    "iptc:0 iptc:65 iptc:70 iptc:75 iptc:1:0 iptc:1:20 iptc:1:22 iptc:1:90 iptc:3:0".split()
)
LAYOUT: Final = frozenset(
    {
        # TIFF 6.0 and its supplements: how the picture is stored, and how it is to be printed or shown.
        *range(254, 269), *range(273, 285), *range(286, 297), 301, *range(317, 333), 334, 336, *range(338, 343),
        *range(345, 349), 351, 400, 401, 402, 403, 404, 405, 433, 434, *range(512, 522), *range(529, 533), 559,
        # Blocks that are read as such, layers and profiles, which are compared themselves.
        700, 33723, 34377, 34665, 34675, 34853, 37724, 40965,
        # Mosaics of RAW files: TIFF/EP, DNG 1.7 without its texts, and colours by Adobe's converter.
        33421, 33422, 37398, 50706, 50707, *range(50710, 50735), *range(50737, 50742), *range(50778, 50782),
        *range(50828, 50835), 50879, *range(50931, 50943), *range(50964, 50988), 51008, 51009, 51022, 51041,
        *range(51089, 51092), *range(51105, 51126), *range(52525, 52560),
        # Settings of printers, and room that Windows leaves in a directory.
        50341, 59932, 59933,
    }
)  # fmt: skip
"""Numbers in the first directory of EXIF or TIFF that say nothing about the photo. All others do, even private ones."""
_PNG_HOUSEKEEPING: Final = re.compile(
    r"(?:Thumb:|aux|crs|date|dc|exif|exifEX|icc|iptc|Iptc4xmpCore|jpeg|pdf|photoshop|png|psd|stEvt|stRef|tiff|webp|xap"
    r"|xapMM|xmp|xmpMM):\w"
    r"|Raw_profile_type_ic[cm]$|(?:signature|unknown)$"
)
"""Colour profiles that no viewer reads, thumbnailers' texts, and fields that ImageMagick repeats (``exif:FNumber``)."""
_ATTRIBUTE_HOUSEKEEPING: Final = re.compile(
    r"com\.apple\.(?!metadata:|FinderInfo$)|com\.apple\.metadata:(?:kMDLabel_|com_apple_|kMDItemDownloadedDate"
    r"|kMDItemLastUsed|kMDItemUsedDates|kMDItemUseCount)|com\.(?:dropbox|google|microsoft|box)\.|oc\.|nextcloud\."
    r"|DOSATTRIB|DosStream|mime_type$|SYNO|com\.synology|shatag\.|drive\.|lustre\.|pcp\.|swift\.|coredump|crtime"
    r"|(?:trusted|security|system|btrfs|ceph|ntfs)\."
)
"""Attributes that systems and programs for synchronising keep for themselves."""


def is_housekeeping(field: str) -> bool:
    prefix, _, local = field.partition(":")
    of_prefix = {"png": _PNG_HOUSEKEEPING, "attribute": _ATTRIBUTE_HOUSEKEEPING}.get(prefix)
    return field in _HOUSEKEEPING or (of_prefix is not None and of_prefix.match(local) is not None)


def rank(name: str) -> tuple[int, str]:
    return _RANK.get(name, len(_RANK)), name


def name_of(field: str) -> str:
    """Return the name of a field for people, such as ``"exposure time"``; an unknown one is put into words."""
    prefix, _, local = field.rpartition(":")
    if prefix in DEVELOPERS:
        return "develop settings"
    if known := _NAME_OF.get(field):
        return known
    if field.startswith("iptc:"):
        return f"IPTC field {prefix[5:] or 2}:{local}"
    if prefix.startswith("attribute"):
        return field.partition(":")[2]
    words = re.sub(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", local).replace("_", " ").split()
    return " ".join(word if word.isupper() else word.lower() for word in words)[:60]
