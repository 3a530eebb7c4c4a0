"""Starts the `tf-mixprec` command without TensorFlow's log noise.

A module of its own beside the package: TensorFlow writes to the terminal when
it is imported, which importing anything below `tf_mixprec` does.
"""

import os
import sys
import tempfile


def main() -> int:
    """Runs the command line and returns its exit status.

    What native code writes to standard error is held back, and only the end of
    it shown if the command fails. What Python writes there is not touched.
    """
    descriptor = sys.stderr.fileno()
    with (
        os.fdopen(os.dup(descriptor), "w", buffering=1) as terminal,
        tempfile.TemporaryFile() as held_back,
    ):
        os.dup2(held_back.fileno(), descriptor)
        python_stderr, sys.stderr = sys.stderr, terminal
        failed = True
        try:
            from tf_mixprec.cli.main import main as command

            status = command()
            sys.stdout.flush()
            failed = False
        except SystemExit:  # --help, or wrong arguments, said by argparse
            failed = False
            raise
        except (BrokenPipeError, KeyboardInterrupt) as stopped:
            failed = False
            # So that the interpreter does not fail on the closed pipe again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 130 if isinstance(stopped, KeyboardInterrupt) else 0
        finally:
            if failed:
                held_back.seek(0)
                log = held_back.read().decode(errors="replace")
                terminal.writelines(log.splitlines(keepends=True)[-20:])
            sys.stderr = python_stderr
            os.dup2(terminal.fileno(), descriptor)
    return status
