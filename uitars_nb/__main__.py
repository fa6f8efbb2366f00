"`python -m uitars_nb` is `uitars-nb`."
import sys

from uitars_nb.cli.main import main

if __name__ == '__main__': sys.exit(main())
