"""SQS: what boto3, awscli and the AWS SDKs speak, over AWS JSON 1.0 and over Query/XML.

A request is read by one of two protocols into one type an action, its signature is checked, its
right is asked for, an action answers, and the same protocol writes the answer:

    sigv4 → json_protocol or query_protocol → shapes → actions/… → the bus

An SQS queue is a queue of the bus. `queues` and `queue_attributes` say how one is seen as the
other, `messages` how a message is; docs/sqs.md has the whole mapping.
"""
