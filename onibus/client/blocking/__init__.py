"""The client for blocking programs. tools/blocking.py generates all of it except `renewing`."""
