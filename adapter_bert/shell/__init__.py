"""The process around the code: flags and settings, errors, environment and command line."""
