"""Files of the sandbox: opened by descriptor, streamed at constant memory, replaced at once.

Everything here may wait for a disk and is called in a worker thread.
"""
