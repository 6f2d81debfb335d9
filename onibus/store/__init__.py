"""Where rows are kept: `interface` says what a store is, `conformance` what it must pass."""
