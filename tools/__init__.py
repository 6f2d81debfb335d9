"""Scripts for those who work on Onibus; nothing here is installed."""
