"""Stores of rows: `interface` defines a store, `conformance` has the checks that each must pass."""
