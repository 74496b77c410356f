"""Options that several commands share, and what they mean; no command is implemented here."""
