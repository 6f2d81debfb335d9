"""AMQP 1.0: bytes in, bytes out. Nothing here waits, reads a clock or touches a socket."""
