"""Shared foundations: errors, files, settings, devices and the command line."""
