"""Service Bus on top of AMQP: what its clients expect of the nodes that links lead to."""
