"""What outlives a search, on disk: caches as Parquet, decisions and the journal as SQLite."""
