"""Data that stays on disk after a search: caches in Parquet and SQLite, decisions and the journal in SQLite."""
