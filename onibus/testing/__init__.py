"""Public: a clock that a test moves and a disk that fails, for programs that embed a bus."""
