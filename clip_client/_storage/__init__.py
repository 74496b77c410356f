"""Files that outlive a process: Parquet, SQLite, locks, vectors and their search. Nothing here calls a server."""
