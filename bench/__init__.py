"""Speed and size, as ratios against the machine itself, measured in one run."""
