"""How commands write files and show progress; no command is implemented here."""
