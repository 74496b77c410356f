"""What is sent of a photo whose picture has been decoded for its features, so that its file is read once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clip_client._encoding import IMAGE_ENCODINGS, EncodedImage, ImageEncoding

if TYPE_CHECKING:
    from typing import Self

    from clip_client._model import ModelInfo
    from clip_client.dedup.features.preview import DecodedPhoto
    from preprocess_ensemble.imaging.transform import PreprocessConfig


@dataclass(frozen=True, kw_only=True)
class ModelInput:
    """Reduces photos to the input of a model, to the bytes that the client would send for their files."""

    config: PreprocessConfig
    encoding: ImageEncoding

    @classmethod
    def of(cls, model: ModelInfo) -> Self | None:
        """Return how photos are reduced for a model; None if the client sends whole files, or has to say what fails."""
        from preprocess_ensemble.imaging.transform import PreprocessConfig

        encoding = next((one for one in IMAGE_ENCODINGS.values() if one.id == model.transfer), None)
        if encoding is None or encoding.quality is None:
            return None
        try:
            config = PreprocessConfig.from_mapping(model.preprocess)
        except (ValueError, TypeError, KeyError):
            return None
        return cls(config=config, encoding=encoding)

    def encode(self, decoded: DecodedPhoto) -> EncodedImage | None:
        """Return what is sent of a file; None if it cannot be decoded for the model.

        The file is not decoded again if that would give the same picture.
        """
        from preprocess_ensemble.imaging.decode import DecodeError, decode, suffices_for

        data, picture, at_least = decoded
        if len(data) <= self.encoding.unchanged_up_to:
            return EncodedImage.of(data, data)
        needed = self.config.decode_at_least
        if not suffices_for(picture, at_least, needed):
            try:
                picture = decode(data, at_least=needed)
            except DecodeError:
                return None
        return EncodedImage.of(self.encoding.payload(picture, self.config, data), data)
