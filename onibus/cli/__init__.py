"""The command line: `main` puts the commands together, each file has one or one group."""
