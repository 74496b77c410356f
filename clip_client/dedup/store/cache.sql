CREATE TABLE IF NOT EXISTS files (
    path BLOB PRIMARY KEY, size_bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, sha256 BLOB NOT NULL,
    ctime_ns INTEGER) WITHOUT ROWID;

-- A picture is named by the content that its group keeps. That content has a row of its own only if another search
-- proved it a copy.
CREATE TABLE IF NOT EXISTS copies (sha256 BLOB PRIMARY KEY, picture BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS copies_by_picture ON copies (picture);

-- Bytes that one version of an algorithm made.
CREATE TABLE IF NOT EXISTS blobs (
    version TEXT NOT NULL, key BLOB NOT NULL, data BLOB NOT NULL, PRIMARY KEY (version, key)) WITHOUT ROWID;
