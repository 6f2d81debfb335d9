"""A Celery app over SQS: celery -A celery_app worker

`python celery_app.py` sends a task to the worker. AWS_ENDPOINT_URL_SQS names the server; by default
it is the one that `make run` starts.
"""

import os

from celery import Celery

ENDPOINT = os.environ.get("AWS_ENDPOINT_URL_SQS", "http://localhost:9324")

app = Celery("celery_app", broker=f"sqs://test:test@{ENDPOINT.removeprefix('http://')}")
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_enable_remote_control=False,
    broker_transport_options={"region": "us-east-1", "is_secure": False, "wait_time_seconds": 1},
)


@app.task
def ship(product: str, quantity: int) -> None:
    """Print an order."""
    print(f"shipped {quantity} {product}", flush=True)


if __name__ == "__main__":
    ship.delay("apples", 3)
