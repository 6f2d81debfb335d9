"""`python -m onibus` runs the command line."""

from onibus.cli.entry import main

main()
