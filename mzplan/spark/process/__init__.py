"""The Spark process of a runner or command: its session and settings, Java, and whether it is alive."""
