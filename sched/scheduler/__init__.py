"""The scheduler: partitions, claim and publish, recovery, and commands in."""
