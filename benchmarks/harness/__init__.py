"""What every experiment shares: rounds, checkpoints, results, the environment; no experiment lives here."""
