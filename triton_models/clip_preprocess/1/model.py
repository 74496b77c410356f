"""The preprocessing step of the ensemble; its code is part of the installed package."""

from preprocess_ensemble.triton_model import TritonPythonModel

__all__ = ("TritonPythonModel",)
