"""Runs the command line as `python -m tf_mixprec`."""

import sys

from tf_mixprec.cli.main import main

sys.exit(main())
