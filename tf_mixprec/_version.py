"""The version, alone in a file so that a build never imports TensorFlow."""

__version__ = "0.1.0"
