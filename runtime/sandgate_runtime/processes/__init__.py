"""Commands of the sandbox: started, watched, and ended with all that they started.

One engine serves every entry: `/execute` and `/v1/processes` differ in what they do with the
output and in how they tell the end, never in how a command runs.
"""
