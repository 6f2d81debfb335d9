"""`python -m onibus` is `onibus`."""

from onibus.cli.main import main

main()
