"""Talks to build/tests/text/text_peer; the protocol stands in peer.c."""
import struct
import subprocess


class Peer:
    def __init__(self, program, directory="."):
        self.process = subprocess.Popen([program, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, n):
        data = self.process.stdout.read(n)
        if len(data) != n:
            raise RuntimeError(f"text_peer died (exit {self.process.wait()})")
        return data

    def ask(self, kind, body):
        """(failed, seconds, bytes)"""
        self.process.stdin.write(struct.pack("<cI", kind.encode(), len(body)) + body)
        self.process.stdin.flush()
        failed, ns, n = struct.unpack("<BQI", self.read(13))
        return bool(failed), ns / 1e9, self.read(n)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
