"""A server on a device, which is a fake one (tests/support/cpu_device.c): its loss as clients and init systems see it, a plan
that does not fit. TANDEM_BIN is the program, FAKE_DEVICE the module."""
import contextlib
import http.client
import json
import os
import subprocess
import unittest

from harness import PATIENCE, Server, main

TANDEM = os.environ["TANDEM_BIN"]
MODULE = {"TANDEM_CUDA_MODULE": os.environ["FAKE_DEVICE"]}


def run(*command, env):
    return subprocess.run([TANDEM, *command], env={**os.environ, **MODULE, **env}, capture_output=True, text=True, timeout=PATIENCE)


class TestDevice(unittest.TestCase):
    def test_loss(self):
        server = Server(TANDEM, "serve", "nano-plain", "--device", "cuda", "--port", "0", "--max-model-len", "1024",
                        "--speculative-config", '{"method": "none"}', env={**MODULE, "FAKE_DEVICE_SYNCS": "50"})
        waiting = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE)
        waiting.request("GET", "/health")
        self.assertEqual(waiting.getresponse().read(), b'{"status":"ok"}')
        status, body = server.post("/v1/completions", {"prompt": "x = 1\n", "max_tokens": 500, "ignore_eos": True})
        self.assertEqual(status, 503)
        self.assertIn("the fake device failed", body["error"]["message"])
        with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):
            waiting.request("GET", "/health")
            answer = waiting.getresponse()
            self.assertEqual(answer.status, 503)
            self.assertIn(json.loads(answer.read())["status"], ("lost", "stopping"))
        code, err = server.stop(number=None)
        self.assertEqual(code, 4)
        self.assertIn("the fake device failed", err)

    def test_small_memory(self):
        done = run("serve", "nano-plain", "--device", "cuda", "--port", "0", env={"FAKE_DEVICE_MB": "8"})
        self.assertEqual(done.returncode, 3)
        self.assertIn("of the device's memory", done.stderr)
        done = run("plan", "nano-plain", "--device", "cuda", "--max-model-len", "4096", env={"FAKE_DEVICE_MB": "24"})
        self.assertEqual(done.returncode, 3)
        self.assertIn("90 % of the 24 MB available", done.stderr)
        done = run("plan", "nano-plain", "--device", "cuda", "--json", env={"FAKE_DEVICE_MB": "1000"})
        self.assertEqual(done.returncode, 0)
        self.assertEqual(json.loads(done.stdout)["available"], 1000 << 20)

    def test_no_device(self):
        done = run("run", "nano-plain", "-p", "x", "--device", "cuda", env={"FAKE_DEVICE_FAILS": "this machine has no NVIDIA driver"})
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "tandem: --device cuda: this machine has no NVIDIA driver\n")


if __name__ == "__main__":
    main()
