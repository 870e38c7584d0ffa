"""The command line: one short file a command, each parses, calls the package and prints."""
