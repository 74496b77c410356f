"""Files that outlive a process: Parquet, SQLite, locks, and vectors with the search among them; it asks no server."""
