"""Turn texts into the token ids of a model, equal to those of open_clip, without torch and transformers."""
