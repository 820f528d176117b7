"""pytest says how each test went in the lines that scripts/test_summary counts."""
import sys


def pytest_runtest_logreport(report):
    failed = report.failed
    if report.when == "call" or failed:
        print("\n[  FAILED  ]" if failed else "\n[       OK ]", report.nodeid.rpartition("::")[2], file=sys.__stdout__, flush=True)
