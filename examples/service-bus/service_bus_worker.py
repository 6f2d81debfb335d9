"""A worker for a Service Bus queue: python service_bus_worker.py

Sends three orders, then processes messages of the queue until SIGTERM or Ctrl-C.
SERVICEBUS_CONNECTION_STRING names the server; by default it is the one that `make run` starts.
"""

import os
import signal
import threading
import uuid

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

DEVELOPMENT = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
QUEUE = "orders"


def send_orders(client: ServiceBusClient) -> None:
    """Send three orders; the last one is invalid."""
    with client.get_queue_sender(QUEUE) as sender:
        for order in ("3 apples", "5 pears", "0 plums"):
            sender.send_messages(ServiceBusMessage(order, message_id=str(uuid.uuid4())))


def process(message: ServiceBusReceivedMessage) -> None:
    """Print an order; reject one without a quantity."""
    quantity, _, product = str(message).partition(" ")
    if not int(quantity):
        raise ValueError(f"no quantity of {product}")
    print(f"shipped {quantity} {product}", flush=True)


def work(client: ServiceBusClient, stopping: threading.Event) -> None:
    """Receive, process and settle messages until the event is set."""
    with client.get_queue_receiver(QUEUE) as receiver:
        while not stopping.is_set():
            for message in receiver.receive_messages(max_message_count=10, max_wait_time=1):
                try:
                    process(message)
                except ValueError as error:
                    reason = {"reason": "BadOrder", "error_description": str(error)}
                    receiver.dead_letter_message(message, **reason)
                    print("dead-lettered", message, flush=True)
                else:
                    receiver.complete_message(message)


def main() -> None:
    """Send orders and process messages until SIGTERM or Ctrl-C."""
    stopping = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    connection = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)
    with ServiceBusClient.from_connection_string(connection) as client:
        send_orders(client)
        work(client, stopping)


if __name__ == "__main__":
    main()
