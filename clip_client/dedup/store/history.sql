-- Tables and columns keep the names that they had in earlier versions: "units" holds the entries of the journal, and
-- "survivor" is the kept photo. Each version only adds to the last one, so an older file gets what it lacks.

CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, computer TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS units (
    id INTEGER PRIMARY KEY, run TEXT NOT NULL, at_ns INTEGER NOT NULL, method TEXT NOT NULL, state TEXT NOT NULL,
    survivor BLOB NOT NULL, survivor_sha256 TEXT NOT NULL, tier TEXT NOT NULL DEFAULT '',
    proof INTEGER NOT NULL DEFAULT 0, is_chosen INTEGER NOT NULL DEFAULT 0, choice INTEGER);
CREATE INDEX IF NOT EXISTS units_by_state ON units (state);
CREATE INDEX IF NOT EXISTS units_by_choice ON units (choice);

CREATE TABLE IF NOT EXISTS files (
    unit INTEGER NOT NULL REFERENCES units (id), original BLOB NOT NULL, quarantined BLOB NOT NULL,
    sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL, atime_ns INTEGER NOT NULL, mtime_ns INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS files_by_unit ON files (unit);
CREATE INDEX IF NOT EXISTS files_by_original ON files (original);

CREATE TABLE IF NOT EXISTS sidecars (
    unit INTEGER NOT NULL REFERENCES units (id), path BLOB NOT NULL, sha256 TEXT NOT NULL, is_ours INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS sidecars_by_unit ON sidecars (unit);
CREATE INDEX IF NOT EXISTS sidecars_by_path ON sidecars (path);

CREATE TABLE IF NOT EXISTS folders (
    unit INTEGER NOT NULL REFERENCES units (id), path BLOB NOT NULL, mode INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    PRIMARY KEY (unit, path)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS left_behind (
    path BLOB NOT NULL, unit INTEGER NOT NULL REFERENCES units (id), PRIMARY KEY (path, unit)) WITHOUT ROWID;

-- AUTOINCREMENT: a later choice must not get the id of a removed choice, which a run in progress may still know.
CREATE TABLE IF NOT EXISTS choices (
    id INTEGER PRIMARY KEY AUTOINCREMENT, step INTEGER NOT NULL, what TEXT NOT NULL, at_ns INTEGER NOT NULL,
    rules TEXT NOT NULL, run TEXT NOT NULL DEFAULT '', photos TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'waiting');
CREATE INDEX IF NOT EXISTS choices_by_run ON choices (run);
CREATE INDEX IF NOT EXISTS choices_by_step ON choices (step);
CREATE INDEX IF NOT EXISTS choices_by_state ON choices (state);

CREATE TABLE IF NOT EXISTS decisions (
    id INTEGER PRIMARY KEY, what TEXT NOT NULL, at_ns INTEGER NOT NULL, choice INTEGER);
-- "contents" has a row for each file that was decided about, so a content has as many rows as copies.
CREATE TABLE IF NOT EXISTS contents (decision INTEGER NOT NULL REFERENCES decisions (id), sha256 TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS contents_by_hash ON contents (sha256);

CREATE TABLE IF NOT EXISTS keep_rules (name TEXT PRIMARY KEY, rules TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tuned (vector_id TEXT PRIMARY KEY, similar REAL NOT NULL);

-- Files of earlier versions whose content is here and that still have to be renamed.
CREATE TABLE IF NOT EXISTS taken_over (name TEXT PRIMARY KEY);

-- One statement says that a photo has moved or is back, and that the choice which it carried out is done or undone.
CREATE TRIGGER IF NOT EXISTS move_carries_out_choice AFTER UPDATE OF state ON units WHEN NEW.state = 'moved' BEGIN
    UPDATE choices SET state = 'done', run = NEW.run WHERE id = NEW.choice AND state = 'waiting';
END;
CREATE TRIGGER IF NOT EXISTS undo_takes_choice_back AFTER UPDATE OF state ON units WHEN NEW.state = 'restored' BEGIN
    UPDATE choices SET state = 'undone' WHERE id = NEW.choice;
END;
CREATE TRIGGER IF NOT EXISTS decision_is_taken_back AFTER DELETE ON decisions BEGIN
    UPDATE choices SET state = 'undone' WHERE id = OLD.choice;
    DELETE FROM contents WHERE decision = OLD.id;
END;
