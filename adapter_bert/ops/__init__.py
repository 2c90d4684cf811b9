"""The arithmetic of a Transformer on TensorFlow, and its hand-written gradients."""
