"""SQS for boto3, awscli and the AWS SDKs, over AWS JSON 1.0 and over Query/XML.

One of two protocols reads a request into the type of its action. The app checks the signature and
the right, the action returns a result, and the same protocol writes the response:

    sigv4 → json_protocol or query_protocol → shapes → actions/… → the bus

An SQS queue is a queue of the bus. `queues` and `queue_attributes` map queues, `messages` maps
messages; docs/sqs.md has the whole mapping.
"""
