"""boto3 of another version: a line in is one action, a line out is its result."""

from __future__ import annotations

import json
import os
import sys

import boto3
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import ClientError

if __name__ == "__main__":
    client = boto3.client(
        "sqs", endpoint_url=os.environ["ENDPOINT"], config=Config(retries={"max_attempts": 0})
    )
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            result = getattr(client, xform_name(asked["action"]))(**asked["given"])
            result.pop("ResponseMetadata")
            answer = {"result": result}
        except ClientError as error:
            told = error.response["Error"]
            answer = {"error": {"code": told["Code"], "message": told["Message"]}}
        print(json.dumps(answer, default=str), flush=True)
