"""What stays on disk after a search: caches as Parquet, decisions and the journal as SQLite. No file is moved here."""
