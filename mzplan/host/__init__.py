"""Access to the machine: files, processes, networks, git, and the installed packages.

Commands and runners both use this package.
"""
