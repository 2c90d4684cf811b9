"""What every package needs: errors, files, settings, devices and the command line."""
