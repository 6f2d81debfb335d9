"""The one internal API: AMQP, SQS, Atom, HTTP and the in-process bus call it."""
