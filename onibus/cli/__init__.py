"""Command line: `main` registers the commands; each other file has one command or group."""
