"""Many tasks over one BERT in a process, by ONNX Runtime."""
