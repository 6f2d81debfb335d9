"""The console: pages for a browser, served by the server itself over the public HTTP API."""
