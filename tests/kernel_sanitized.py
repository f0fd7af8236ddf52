"""Runs the suite's quick checks under sanitizers: `python kernel_sanitized.py [BUG]`.

The process must have libasan and libubsan preloaded, as test_kernels_sanitized.py does. With a
number it runs the text with that planted bug, which must stop the process.
"""

import sys

import kernel_suite
import kernel_suite_more
from kernel_bugs import BEYOND_THE_END, MISALIGNED
from shim_backend import HostBackend

if __name__ == "__main__":
    kernel_suite.MARGIN[0] = 0  # so that the end of every tensor is the end of its memory
    planted = [*MISALIGNED, BEYOND_THE_END][int(sys.argv[1])] if len(sys.argv) > 1 else None
    host = HostBackend(sanitize=True, edit={planted.module: planted.plant} if planted else None)
    done = 0
    for name, check in kernel_suite_more.checks(full=False).items():
        if "beyond" not in name and (planted is None or name.startswith(f"{planted.module}:")):
            check(host)
            done += 1
    print(f"{done} checks")
