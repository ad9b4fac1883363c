"""`python -m sandgate_router up|router`: the gateway without the command line's flags."""

import sys

from sandgate_router.server import main

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["up"]:
            sys.exit(main("up", {}))
        case ["router"]:
            sys.exit(main("router", {}))
        case _:
            sys.exit("usage: python -m sandgate_router up|router")
