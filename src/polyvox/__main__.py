"""python -m polyvox"""

from polyvox.cli import main

main()
