"""A library of Apple Photos, made here: the folders of macOS 13, and as much of its database as osxphotos reads."""

from __future__ import annotations

import plistlib
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_MODEL_VERSION: Final = 16320
"""Photos 8, macOS 13."""

_SCHEMA: Final = """
ZMOMENT ZAPPROXIMATELATITUDE ZAPPROXIMATELONGITUDE ZENDDATE ZMODIFICATIONDATE ZREPRESENTATIVEDATE ZSTARTDATE
    ZSUBTITLE ZTIMEZONEOFFSET ZTITLE ZTRASHEDSTATE ZUUID Z_PK
ZPERSON ZDISPLAYNAME ZFACECOUNT ZFULLNAME ZKEYFACE ZMANUALORDER ZPERSONUUID ZTYPE Z_PK
ZDETECTEDFACE ZAGETYPE ZASSET ZBLURSCORE ZCENTERX ZCENTERY ZEYEMAKEUPTYPE ZEYESSTATE ZFACIALHAIRTYPE ZGENDERTYPE
    ZGLASSESTYPE ZHAIRCOLORTYPE ZHASSMILE ZHIDDEN ZISINTRASH ZLIPMAKEUPTYPE ZMANUAL ZMASTERIDENTIFIER ZPERSON
    ZPOSEYAW ZQUALITY ZQUALITYMEASURE ZROLL ZSIZE ZSMILETYPE ZSOURCEHEIGHT ZSOURCEWIDTH ZUUID Z_PK
ZASSET ZACTIVELIBRARYSCOPEPARTICIPATIONSTATE ZADDEDDATE ZADJUSTMENTTIMESTAMP ZAVALANCHEPICKTYPE ZAVALANCHEUUID
    ZCLOUDASSETGUID ZCLOUDBATCHPUBLISHDATE ZCLOUDOWNERHASHEDPERSONID ZCURATIONSCORE ZDATECREATED ZDEPTHTYPE
    ZDIRECTORY ZFAVORITE ZFILENAME ZHASADJUSTMENTS ZHDRTYPE ZHEIGHT ZHIDDEN ZHIGHLIGHTVISIBILITYSCORE ZIMPORTSESSION
    ZKIND ZKINDSUBTYPE ZLATITUDE ZLIBRARYSCOPE ZLIBRARYSCOPESHARESTATE ZLONGITUDE ZMASTER ZMODIFICATIONDATE ZMOMENT
    ZMOMENTSHARE ZORIENTATION ZOVERALLAESTHETICSCORE ZPROMOTIONSCORE ZSAVEDASSETTYPE ZSYNDICATIONSTATE ZTRASHEDDATE
    ZTRASHEDSTATE ZUNIFORMTYPEIDENTIFIER ZUUID ZVISIBILITYSTATE ZWIDTH Z_PK
Z_28ASSETS Z_28ALBUMS Z_3ASSETS Z_FOK_3ASSETS Z_PK
ZGENERICALBUM ZCLOUDLOCALSTATE ZCLOUDOWNERFIRSTNAME ZCLOUDOWNERFULLNAME ZCLOUDOWNERHASHEDPERSONID
    ZCLOUDOWNERLASTNAME ZCREATIONDATE ZCUSTOMSORTASCENDING ZCUSTOMSORTKEY ZENDDATE ZKIND ZPARENTFOLDER ZSTARTDATE
    ZTITLE ZTRASHEDSTATE ZUUID Z_PK
ZADDITIONALASSETATTRIBUTES ZASSET ZASSETDESCRIPTION ZCAMERACAPTUREDEVICE ZIMPORTEDBYBUNDLEIDENTIFIER
    ZIMPORTEDBYDISPLAYNAME ZINFERREDTIMEZONEOFFSET ZMASTERFINGERPRINT ZORIGINALFILENAME ZORIGINALFILESIZE
    ZORIGINALHEIGHT ZORIGINALORIENTATION ZORIGINALRESOURCECHOICE ZORIGINALWIDTH ZREVERSELOCATIONDATA
    ZSYNDICATIONHISTORY ZSYNDICATIONIDENTIFIER ZTIMEZONENAME ZTIMEZONEOFFSET ZTITLE ZUNMANAGEDADJUSTMENT Z_PK
Z_1KEYWORDS Z_1ASSETATTRIBUTES Z_40KEYWORDS Z_PK
ZKEYWORD ZTITLE Z_PK
ZFILESYSTEMVOLUME ZNAME ZUUID Z_PK
ZASSETDESCRIPTION ZLONGDESCRIPTION Z_PK
ZUNMANAGEDADJUSTMENT ZADJUSTMENTFORMATIDENTIFIER Z_PK
ZINTERNALRESOURCE ZASSET ZCOMPACTUTI ZDATALENGTH ZDATASTORESUBTYPE ZFILESYSTEMBOOKMARK ZFILESYSTEMVOLUME
    ZFINGERPRINT ZLOCALAVAILABILITY ZREMOTEAVAILABILITY ZRESOURCETYPE Z_PK
ZCLOUDMASTER ZCLOUDLOCALSTATE ZCLOUDMASTERGUID Z_PK
ZFILESYSTEMBOOKMARK ZPATHRELATIVETOVOLUME ZRESOURCE Z_PK
ZEXTENDEDATTRIBUTES ZASSET Z_PK
ZCOMPUTEDASSETATTRIBUTES ZASSET ZBEHAVIORALSCORE ZFAILURESCORE ZHARMONIOUSCOLORSCORE ZIMMERSIVENESSSCORE
    ZINTERACTIONSCORE ZINTERESTINGSUBJECTSCORE ZINTRUSIVEOBJECTPRESENCESCORE ZLIVELYCOLORSCORE ZLOWLIGHT ZNOISESCORE
    ZPLEASANTCAMERATILTSCORE ZPLEASANTCOMPOSITIONSCORE ZPLEASANTLIGHTINGSCORE ZPLEASANTPATTERNSCORE
    ZPLEASANTPERSPECTIVESCORE ZPLEASANTPOSTPROCESSINGSCORE ZPLEASANTREFLECTIONSSCORE ZPLEASANTSYMMETRYSCORE
    ZSHARPLYFOCUSEDSUBJECTSCORE ZTASTEFULLYBLURREDSCORE ZWELLCHOSENSUBJECTSCORE ZWELLFRAMEDSUBJECTSCORE
    ZWELLTIMEDSHOTSCORE Z_PK
ZCLOUDSHAREDALBUMINVITATIONRECORD ZINVITEEFIRSTNAME ZINVITEEFULLNAME ZINVITEEHASHEDPERSONID ZINVITEELASTNAME Z_PK
ZCLOUDSHAREDCOMMENT ZCOMMENTDATE ZCOMMENTEDASSET ZCOMMENTERHASHEDPERSONID ZCOMMENTTEXT ZISLIKE ZISMYCOMMENT
    ZLIKEDASSET Z_PK
"""
"""A table and its columns; indented lines go on with the columns."""

_ROOT_ALBUM: Final = 3999
_ORIGINAL, _RAW_ALTERNATIVE = 1, 17
"""ZDATASTORESUBTYPE of a resource."""
_LIVE: Final = 2
"""ZKINDSUBTYPE."""
_SECONDS_TO_2001: Final = 978_307_200
"""Photos counts from 2001."""


class PhotosLibrary:
    """A new, empty library; each photo is in its database when the method returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._database = folder / "database" / "Photos.sqlite"
        self._database.parent.mkdir(parents=True)
        self._photos = 0
        with self._connected() as connection:
            for line in _SCHEMA.strip().replace("\n    ", " ").splitlines():
                table, *columns = line.split()
                connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
            connection.execute("CREATE TABLE Z_METADATA (Z_VERSION, Z_UUID, Z_PLIST)")
            about = plistlib.dumps({"PLModelVersion": _MODEL_VERSION}, fmt=plistlib.FMT_BINARY)
            connection.execute("INSERT INTO Z_METADATA VALUES (1, 'library', ?)", (about,))
            _insert(connection, "ZGENERICALBUM", {"Z_PK": 1, "ZUUID": "root", "ZKIND": _ROOT_ALBUM})

    def add(
        self,
        data: bytes | None,
        name: str,
        *,
        suffix: str = ".jpeg",
        taken_s: float = 1_600_000_000,
        raw: bytes | None = None,
        film: bytes | None = None,
        edited: bytes | None = None,
        hidden: bool = False,
        in_trash: bool = False,
        shared: bool = False,
        referenced: Path | None = None,
    ) -> Path:
        """Import a photo and return where its original is; without ``data`` it is in iCloud only.

        One that is ``referenced`` is such a file outside the library, which must be there already.
        """
        self._photos += 1
        number = self._photos
        uuid = f"{number % 16:X}{number:07X}-0000-4000-8000-000000000000"
        original = referenced or self.folder / "originals" / uuid[0] / f"{uuid}{suffix}"
        files = {
            original: data,
            original.with_name(f"{uuid}_4.dng"): raw,
            original.with_name(f"{uuid}_3.mov"): film,
            self.folder / "resources" / "renders" / uuid[0] / f"{uuid}_1_201_a.jpeg": edited,
        }
        for path, held in files.items():
            if held is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(held)
        asset = {
            "Z_PK": number,
            "ZUUID": uuid,
            "ZDIRECTORY": uuid[0] if referenced is None else str(referenced.parent),
            "ZFILENAME": original.name,
            "ZKIND": 0,
            "ZKINDSUBTYPE": 0 if film is None else _LIVE,
            "ZDATECREATED": taken_s - _SECONDS_TO_2001,
            "ZHIDDEN": int(hidden),
            "ZTRASHEDSTATE": int(in_trash),
            "ZHASADJUSTMENTS": int(edited is not None),
            "ZUNIFORMTYPEIDENTIFIER": "public.jpeg",
            "ZCLOUDBATCHPUBLISHDATE": 1.0 if shared else None,
            "ZSAVEDASSETTYPE": 3 if referenced is None else 10,
            "ZVISIBILITYSTATE": 0,
            "ZADDEDDATE": 0.0,
        }
        more = {"Z_PK": number, "ZASSET": number, "ZORIGINALFILENAME": name, "ZTIMEZONEOFFSET": 0}
        resource = {"ZASSET": number, "ZLOCALAVAILABILITY": 1 if data is not None else -1, "ZREMOTEAVAILABILITY": 1}
        with self._connected() as connection:
            _insert(connection, "ZASSET", asset)
            _insert(connection, "ZADDITIONALASSETATTRIBUTES", more)
            _insert(connection, "ZINTERNALRESOURCE", {**resource, "ZDATASTORESUBTYPE": _ORIGINAL})
            if raw is not None:
                _insert(connection, "ZINTERNALRESOURCE", {**resource, "ZDATASTORESUBTYPE": _RAW_ALTERNATIVE})
        return original

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._database)) as connection:
            connection.execute("PRAGMA synchronous = OFF")  # nobody needs it after a power cut
            with connection:
                connection.execute("BEGIN")
                yield connection


def _insert(connection: sqlite3.Connection, table: str, row: Mapping[str, object]) -> None:
    places = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values()))
