"""Entry of the zipapp and of `python -m reactant_node`."""

import sys

from reactant_node.cli import main

if __name__ == "__main__":
    sys.exit(main())
