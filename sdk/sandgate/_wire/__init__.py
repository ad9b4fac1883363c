"""What goes over the wire, without a socket: build a request, decode an answer.

A shell (sync today, async tomorrow) sends what these modules build and feeds them what comes
back. They keep no connection and no clock, so every decision is tested on bytes alone.
"""
