"""From groups to moved files and back: plan, apply, quarantine, purge; the only place that moves files."""
