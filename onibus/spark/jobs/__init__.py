"""Jobs of the pipeline: each a function here and a command of `onibus pipeline`."""
