"""Tasks that label a text or a pair: GLUE, tables, classes, numbers and sets of labels."""
