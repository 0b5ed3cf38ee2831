"""What programs have measured: read from what they print, with units that are never guessed."""
