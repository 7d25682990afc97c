"""edgeopt takes a trained model to a device: it optimizes, verifies, measures and bundles it."""

__version__ = "0.1.0"
