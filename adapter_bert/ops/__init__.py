"""The layers of a Transformer in TensorFlow, and their hand-written gradients."""
