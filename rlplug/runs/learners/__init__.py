"""One run with several learners, each in a process of its own."""
