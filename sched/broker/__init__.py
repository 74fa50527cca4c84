"""The broker's seam: protocol, topology, and the adapter for RabbitMQ."""
