"""python -m polyvox"""

from polyvox.cli.main import main

main()
