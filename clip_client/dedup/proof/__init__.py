"""The proof that a photo is a re-encoded copy: each of its blocks shows only what the kept photo shows, too."""
