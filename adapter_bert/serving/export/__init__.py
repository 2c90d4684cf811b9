"""SavedModels and ONNX files of tasks."""
