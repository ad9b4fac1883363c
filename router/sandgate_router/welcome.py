"""What `sandgate up` prints under its first lines: how to use what has just been started.

Pure: a URL and a pool in, text out. A reader copies it into a shell or into Python, so it
names the pool and the address as they are, and says when nothing guards this machine.
"""

from sandgate_router.names import DEFAULT_NAMESPACE
from sandgate_router.registry.base import PoolStatus

_WELCOME = """\

Claim a sandbox:

  curl {url}/v1/claims -H 'Content-Type: application/json' -d '{body}'

Or from Python:

  from sandgate import Gateway, Sandboxes
  with Sandboxes(Gateway("{url}")) as sandboxes:
      with sandboxes.claim({arguments}) as sandbox:
          print(sandbox.commands.run("python3 -V").stdout)

"""

NOT_ISOLATED = "Nothing keeps the code in a sandbox from this machine: isolation is none.\n"

_END = "Ctrl-C ends the gateway and every sandbox with it.\n"


def build_welcome(url: str, pool: PoolStatus) -> str:
    """Return the text for a gateway at `url` whose sandboxes come from `pool`."""
    body, arguments = f'{{"pool": "{pool.name}"}}', f'"{pool.name}"'
    if pool.namespace != DEFAULT_NAMESPACE:
        body = f'{{"pool": "{pool.name}", "namespace": "{pool.namespace}"}}'
        arguments += f', namespace="{pool.namespace}"'
    text = _WELCOME.format(url=url, body=body, arguments=arguments)
    if pool.isolation == "none":
        text += NOT_ISOLATED
    return text + _END
