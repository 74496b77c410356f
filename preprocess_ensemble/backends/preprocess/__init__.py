"""The metrics and settings of ``clip_preprocess``. Nothing here may decode an image."""
