"""What can be asked of an entity's $management, one file a theme."""
