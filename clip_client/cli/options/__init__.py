"""Command-line options: declared, checked and parsed into objects. No command runs here."""
