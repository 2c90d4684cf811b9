"""Many tasks over one BERT: in memory, over HTTP and as a SavedModel."""
