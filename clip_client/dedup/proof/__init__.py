"""The proof that a photo is a re-encoded copy: in no block does it show what the kept one does not show."""
