"""The health check of a scheduler's or worker's container: its member must be live by the store's clock.

Exit 0 when it is, 1 when the store knows no live member of this host, 3 when the store or broker is out of reach
(as `rota status` says it).
"""

import json
import socket
import subprocess
import sys


def main() -> int:
    """Ask `rota status`; its members are judged by their heartbeats, not by whether a process exists."""
    done = subprocess.run(["rota", "status", "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr, end="")
        return done.returncode
    members = json.loads(done.stdout)["members"]
    here = [member for member in members if member["host"] == socket.gethostname()]
    return 0 if any(member["state"] == "live" for member in here) else 1


if __name__ == "__main__":
    sys.exit(main())
