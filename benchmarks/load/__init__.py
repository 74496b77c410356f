"""Load generators, each in a process of its own, and adapters for what they ask; no experiment lives here."""
