"""A container's health: the answer of its process's ``/readyz``. The standard library only, so that it starts at once.

healthcheck.py 9460
healthcheck.py 9470 /livez
"""

import http.client
import sys

_TIMEOUT_S = 2.0


def main(port: str, path: str = "/readyz") -> int:
    """0 when the answer is yes; otherwise 1, and why."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=_TIMEOUT_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
    except OSError as error:
        print(error)
        return 1
    print(text)
    return 0 if answer.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
