"""What stays on disk after a search: caches, decisions and the journal. No file is moved here."""
