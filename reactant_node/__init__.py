"""reactant-node: one file that turns a Linux host into an inference node for ONNX models."""

__version__ = "0.1.0"
