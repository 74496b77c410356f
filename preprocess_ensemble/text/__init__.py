"""Turn texts into the token ids of a model, the same as open_clip's, without torch and transformers."""
