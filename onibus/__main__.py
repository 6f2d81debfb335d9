"""`python -m onibus` is `onibus`."""

from onibus.cli.entry import main

main()
