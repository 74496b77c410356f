"""What every experiment shares: workers, rounds, checkpoints, results, the environment; no experiment lives here."""
