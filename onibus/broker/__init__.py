"""Where core, stores and time meet: `commit_loop` is the half-screen that makes answers durable."""
