"""Files of tasks for other programs: SavedModels and ONNX files."""
